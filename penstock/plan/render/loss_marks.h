// Draws what happened to a run on the picture of its losses.
//
// loss_svg.cpp calls it.  Breaks have numbers, since causes are long; the list below the chart says
// each.  Knows no losses.
// Units: pixels, and steps as the caller counts them.
#pragma once
#include "penstock/plan/render/loss_svg.h"
#include "penstock/plan/render/svg.h"

namespace penstock::render {

// The chart's edges, and the steps at its left and right ones.
struct ChartFrame {
  double left = 0;
  double right = 1;
  double top = 0;
  double bottom = 1;
  double first_step = 0;
  double last_step = 1;

  double x(double step) const {
    return left + (step - first_step) / (last_step - first_step) * (right - left);
  }
};

// Draws the steps that were done again, below the curves.
void draw_steps_again(Svg& svg, const LossMarks& marks, const ChartFrame& frame);
// Draws ticks of saves at the axis, and a line with a number for each break, above the curves.
void draw_marks(Svg& svg, const LossMarks& marks, const ChartFrame& frame);

// How much the picture grows by the list of breaks; 0 without any.
double break_list_height(const LossMarks& marks);
// `y` is where the list begins, `width` how wide its lines may be.
void draw_break_list(Svg& svg, const LossMarks& marks, double x, double y, double width);

}  // namespace penstock::render
