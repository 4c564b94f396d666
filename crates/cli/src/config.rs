//! `retake config`: every configured value, and its source.

use std::collections::BTreeMap;
use std::path::Path;

use retake_runner::config::{Config, Value};
use serde::Serialize;

use super::{Exit, Failure};
use crate::record::Record;
use crate::term;
use crate::term::{Column, Palette, Table};

/// Print every configuration value
///
/// Defaults, then the user's config.yml, the project's .agent/config.yml, then RETAKE_ variables:
/// RETAKE_EXECUTION__MAX_OUTPUT_KB sets execution.max_output_kb.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Also print where each value comes from
    #[arg(long)]
    explain: bool,
    /// Print the values as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Explained<'a> {
    key: &'a str,
    value: serde_json::Value,
    source: String,
}

pub(super) fn config(args: &Args, store: Option<&Path>) -> Result<Exit, Failure> {
    let record = Record::find(store)?;
    let config = Config::load(record.project.root.as_deref())?;
    match (args.json, args.explain) {
        (true, true) => {
            let explained: Vec<_> = config
                .entries()
                .map(|(key, value, source)| Explained {
                    key,
                    value: value.to_json(),
                    source: source.to_string(),
                })
                .collect();
            term::document(&explained)?;
        }
        (true, false) => {
            let values: BTreeMap<_, _> =
                config.entries().map(|(key, value, _)| (key, value.to_json())).collect();
            term::document(&values)?;
        }
        (false, true) => {
            let mut table =
                Table::new([Column::new("KEY"), Column::new("VALUE"), Column::new("SOURCE")]);
            for (key, value, source) in config.entries() {
                table.row([key.into(), text(value).into(), source.to_string().into()]);
            }
            term::page(&table.render(None, Palette::of_stdout()))?;
        }
        (false, false) => {
            let lines: String = config
                .entries()
                .map(|(key, value, _)| format!("{key}: {}\n", term::visible(&text(value))))
                .collect();
            term::page(&lines)?;
        }
    }
    Ok(Exit::OK)
}

/// The value as written in a configuration file.
fn text(value: &Value) -> String {
    match value {
        Value::Words(words) => format!("[{}]", words.join(", ")),
        Value::Number(number) => number.to_string(),
        Value::Truth(truth) => truth.to_string(),
        Value::Word(word) => (*word).to_owned(),
        Value::Text(text) => text.clone(),
        Value::Pairs(pairs) => {
            let pairs: Vec<_> =
                pairs.iter().map(|(name, value)| format!("{name}: {value}")).collect();
            format!("{{{}}}", pairs.join(", "))
        }
        Value::Unset => "-".to_owned(),
    }
}
