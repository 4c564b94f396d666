//! Test results from what a run printed and from report files.

mod combine;
mod found;
mod frameworks;
mod lines;
mod outline;
mod parser;
pub mod reports;
mod results;
mod scan;

pub use parser::{Parser, Stream};
pub use results::{
    Confidence, Framework, MAX_DETAILS, MAX_ERROR, MAX_FAILURE_DETAILS, MAX_NAME, MAX_PROBLEMS,
    Source, TestDetail, TestResults, TestStatus, Unit,
};
