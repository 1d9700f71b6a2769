"""Have pages show what this build and other machines have measured, for Sphinx."""

import d2lpar_charts as charts
import d2lpar_tables as tables
from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective

DIRECTIVES = {
    "claims-table": tables.claims_table,
    "build-table": tables.build_table,
    "machines-table": tables.machines_table,
    "verdicts-table": tables.verdicts_table,
    "causes-table": tables.causes_table,
    "conditions-table": tables.conditions_table,
    "experiment-table": tables.experiment_table,
    "summary-table": tables.summary_table,
    "verdicts-chart": charts.verdicts_chart,
    "causes-chart": charts.causes_chart,
    "experiment-figure": charts.experiment_figure,
    "first-picture": charts.first_picture,
}


class Pending(nodes.General, nodes.Element):
    """The place of something that can be made only when every page has been read."""


class PendingDirective(SphinxDirective):
    """`{claims-table}` and the like: leave a placeholder."""

    optional_arguments = 1

    def run(self):
        """Return it."""
        return [Pending(what=self.name, argument="".join(self.arguments))]


class FillPending(SphinxPostTransform):
    """Put what was waited for where the placeholders are."""

    default_priority = 8  # before references are resolved (10)

    def run(self, **kwargs):
        """Replace each placeholder of the page by what its function returns."""
        for node in list(self.document.findall(Pending)):
            make = DIRECTIVES[node["what"]]
            node.replace_self(make(self.app, self.env.docname, node["argument"]))


def setup(app):
    """Register all of it with Sphinx."""
    app.add_node(Pending)
    app.add_post_transform(FillPending)
    for name in DIRECTIVES:
        app.add_directive(name, PendingDirective)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
