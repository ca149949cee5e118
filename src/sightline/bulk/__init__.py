"""Bulk jobs: text files of any length are translated, aligned or learned from. They can be interrupted and resumed."""

from typing import TYPE_CHECKING

from sightline.lazy import lazy_exports

if TYPE_CHECKING:
    from sightline.bulk.distill import translate_for_student
    from sightline.bulk.lines import Report, answer_lines
    from sightline.bulk.pairs import learn_shortlist, write_pairs

__all__ = ["Report", "answer_lines", "learn_shortlist", "translate_for_student", "write_pairs"]
__getattr__, __dir__ = lazy_exports(__name__)
