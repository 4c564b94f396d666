//! Test results from what a run printed and from report files.

mod combine_results;
mod framework_results;
mod frameworks;
mod indented_titles;
mod limits;
mod line_splitter;
mod output_cuts;
mod output_parser;
mod recogniser;
pub mod reports;
mod token_parsing;

pub use limits::{
    MAX_DETAILS, MAX_ERROR, MAX_FAILURE_DETAILS, MAX_NAME, MAX_PROBLEMS, MAX_RUNNING,
};
pub use output_cuts::OutputCuts;
pub use output_parser::{TestOutputParser, may_begin_test_line};
