"""A plan as text: a table for people, JSON and YAML for programs, a shell script a rank for running by hand."""

from disagg_run.render.documents import render_json, render_yaml
from disagg_run.render.shell import render_process_shell, render_shell, write_scripts
from disagg_run.render.table import render_table

__all__ = ["render_json", "render_process_shell", "render_shell", "render_table", "render_yaml", "write_scripts"]
