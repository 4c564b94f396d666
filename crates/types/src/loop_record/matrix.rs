//! The record of a matrix loop.
