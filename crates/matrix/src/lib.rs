//! A command over versions, refs and iterations.
