//! What a loop writes down: one enum of entries for each kind of loop, written and read back by the
//! same type.

pub mod agent;
pub mod crash;
pub mod fleet;
pub mod matrix;
