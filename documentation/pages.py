"""All generated pages of the site."""

from .api import write_api
from .components import write_components
from .encodings import write_encodings
from .gallery import write_gallery
from .graph import write_graph
from .markdown import Open
from .performance import write_performance
from .studies import write_studies


def write_pages(opened: Open) -> None:
    """Write every generated page and picture."""
    for part in (
        write_encodings,
        write_components,
        write_api,
        write_studies,
        write_gallery,
        write_performance,
        write_graph,
    ):
        part(opened)
