//! The record of a crash loop.
