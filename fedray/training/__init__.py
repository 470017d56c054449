"""Batched execution: many jobs as lanes of one computation. One engine a file, one rule that picks it."""

from __future__ import annotations


