"""A report on a model as a single HTML file."""

import base64
import html
import io
import shlex
from pathlib import Path

from pyro_dgp import plots
from pyro_dgp._files import written_whole
from pyro_dgp.table.outputs import MARK
from pyro_dgp.table.packages import pd
from pyro_dgp.table.report.pictures import Picture, importance_of, pictures
from pyro_dgp.table.scores import ScoreTable
from pyro_dgp.table.shared import TableModel

__all__ = ["write_page"]

# Number of columns along which predictions are drawn.
_MOST_INPUTS = 3

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
{mark}
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
h1 {{ font-size: 1.6rem; }} h2 {{ font-size: 1.2rem; margin-top: 2.2rem; }}
table {{ border-collapse: collapse; }} th, td {{ padding: .3rem .8rem; text-align: right; border-bottom: 1px solid #ddd; }}
th:first-child, td:first-child {{ text-align: left; }} tbody tr:first-child {{ font-weight: 600; }}
dt {{ color: #666; float: left; clear: left; width: 9rem; }} dd {{ margin: 0 0 .2rem 9.5rem; overflow-wrap: anywhere; }}
figure {{ margin: 1rem 0; }} img {{ max-width: 100%; height: auto; }} figcaption, .notes {{ color: #666; font-size: .9rem; }}
code, pre {{ background: #f5f5f5; padding: .1rem .3rem; }} pre {{ padding: .6rem; overflow-x: auto; }}
</style>
</head>
<body>
<h1>{title}</h1>
{facts}
<h2>How good predictions are</h2>
{tables}
{pictures}
<h2>New rows</h2>
<pre>{command}</pre>
</body>
</html>
"""  # noqa: E501
# Pictures of the model as a whole, not of one target.
_OF_THE_MODEL = ("importance", "training")
_HEADINGS = {
    "calibration": "Calibration",
    "importance": "Columns that matter",
    "along_input": "What the model has learned",
    "densities": "Some rows",
    "probabilities": "Some rows",
    "training": "Training",
}


def write_page(
    path: Path, own: TableModel, frame: pd.DataFrame, scores: dict, model_path: str,
    of: str = "held-out rows", progress: bool = False,
) -> None:  # fmt: skip
    """Writes a page with scores, pictures and facts about a model.

    :param path: File to write.
    :param TableModel own: The model.
    :param pandas.DataFrame frame: Rows with targets that were not trained on.
    :param dict scores: Scores of these rows.
    :param str model_path: Name of the file of the model.
    :param str of: Description of the rows.
    :param bool progress: Whether to show progress bars.
    """
    importance = importance_of(own, frame, progress)
    along = sorted(importance, key=lambda name: -importance[name][0])[:_MOST_INPUTS]
    drawn = []
    for i, target in enumerate(own.targets):
        found = pictures(own, frame, along, target, importance=None if i else importance)
        for picture in found:
            if i == 0 or picture.name != "training":
                drawn.append((target, picture, _encoded(picture)))
            plots.pyplot().close(picture.figure)
    kind = "Classes" if own.columns.classes else "Predictive densities"
    page = _PAGE.format(
        mark=MARK,
        title=html.escape(f"{kind} of {', '.join(own.targets)}"),
        facts=_facts(own.notes.get("facts", {})),
        tables="\n".join(map(_table, own.task.tables(scores, of))),
        pictures=_sections(drawn, len(own.targets) > 1),
        command=html.escape(
            f"pyro-dgp predict {shlex.quote(model_path)} new.csv --output predictions.csv"
        ),
    )
    with written_whole(path) as temporary:
        Path(temporary).write_text(page, encoding="utf-8")


def _encoded(picture: Picture) -> str:
    content = io.BytesIO()
    picture.figure.savefig(content, dpi=110, format="png")
    return base64.b64encode(content.getvalue()).decode()


def _facts(facts: dict[str, str]) -> str:
    rows = (f"<dt>{html.escape(k)}</dt><dd>{html.escape(str(v))}</dd>" for k, v in facts.items())
    return f"<dl>{''.join(rows)}</dl>"


def _table(table: ScoreTable) -> str:
    def row(kind: str, values: list[str]) -> str:
        return f"<tr>{''.join(f'<{kind}>{html.escape(v)}</{kind}>' for v in values)}</tr>"

    rows = "".join(row("td", values) for values in table.rows)
    head = row("th", [table.title, *table.head[1:]])
    notes = html.escape(" ".join(table.notes))
    return f'<table><thead>{head}</thead><tbody>{rows}</tbody></table><p class="notes">{notes}</p>'


def _sections(drawn: list[tuple[str, Picture, str]], several: bool) -> str:
    parts, last = [], None
    for target, picture, png in drawn:
        heading = next(text for name, text in _HEADINGS.items() if picture.name.startswith(name))
        if several and picture.name not in _OF_THE_MODEL:
            heading += f": {target}"
        if heading != last:
            parts.append(f"<h2>{html.escape(heading)}</h2>")
            last = heading
        caption = html.escape(picture.caption)
        image = f'<img alt="{caption}" src="data:image/png;base64,{png}">'
        parts.append(f"<figure>{image}<figcaption>{caption}</figcaption></figure>")
    return "\n".join(parts)
