"""Hooks by the module that models which an earlier penstock saved whole have them of."""

from penstock._engines.parameters.external_parameters import _enter as _enter
from penstock._engines.parameters.external_parameters import _leave as _leave
