//! What a loop records: one enum of entries per kind of loop, written and read by the same type.

pub mod agent;
pub mod crash;
pub mod fleet;
pub mod matrix;
