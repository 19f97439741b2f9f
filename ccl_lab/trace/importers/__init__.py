"""Readers of traces, one format a file. Every reader turns any foreign bytes into a Trace or a
DecodeError."""
