import re

import numpy as np
import pytest

from d2lpar._plain.errors import require_count


@pytest.mark.parametrize("value", [1, -1, np.int64(1), True, 2.0, "2", None])
def test_what_is_no_such_count_is_refused_by_name_and_value(value):
    said = f"count must be an integer of at least 2, found {value!r}. Ask for two."
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        require_count("count", value, at_least=2, way_out="Ask for two.")
