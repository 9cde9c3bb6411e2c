// The page's own files, as they stand beside this one.
//
// timeline_page.cpp fills in the places {{title}}, {{style}}, {{script}}, {{data}} and {{tables}}.
// The build writes the definitions (parts.cpp.in).
#pragma once
#include <string_view>

namespace penstock::render::page {

extern const std::string_view kHtml;
extern const std::string_view kStyle;
extern const std::string_view kScript;

}  // namespace penstock::render::page
