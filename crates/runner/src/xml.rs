//! Text as XML takes it.

pub use crate::html::escape_xml as escaped;
