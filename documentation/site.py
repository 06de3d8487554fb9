"""Run by mkdocs-gen-files, which adds the generated pages to the site without writing them to docs/."""

import mkdocs_gen_files

# mkdocs runs this file as a script: its imports are absolute.
from bearings.documentation.api import copy_sources
from bearings.documentation.pages import write_pages

copy_sources()
write_pages(mkdocs_gen_files.open)
