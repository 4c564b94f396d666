//! Which files changed between two moments.
