//! Output for a person at the terminal: tables, colours, a pager, a browser.

#[cfg(feature = "web")]
mod browser;
mod pager;
mod table;

#[cfg(feature = "web")]
pub(crate) use browser::browse;
pub(crate) use pager::page;
pub(crate) use retake_runner::colour::{Palette, Shade};
pub(crate) use table::{Cell, Column, Table, cut, width_of};

pub(crate) use retake_runner::terminal::{data, document, height, json_line, say, width, writer};
/// A number on the command line.
pub(crate) fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "a whole number is needed, such as 50".to_owned())
}

pub(crate) use retake_types::text::{
    ago, count, duration, moment, plain, size, visible, visible_lines,
};
