//! The record of an agent loop.
