//! What may be left of a recording after a crash: pure, no I/O, the same answer every time.

mod digest;
mod page;
mod radix;
mod tree;

pub use tree::{FileView, Found, Thing, Tree};
