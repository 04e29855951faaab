"""Spec, facts and plugins become one ``LaunchPlan``; nothing here reads a file, the clock or the environment."""
