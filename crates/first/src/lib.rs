//! Crash testing inside `cargo test`.
