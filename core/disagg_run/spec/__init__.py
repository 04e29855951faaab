"""What is asked: command line, run file and environment become one ``LaunchSpec``."""
