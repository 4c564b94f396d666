//! A coding agent in a loop.
