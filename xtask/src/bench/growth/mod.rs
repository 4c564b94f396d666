//! How costs grow: with the runs in the record, the iterations of a loop, the cells of a matrix, the files
//! in a tree.
//!
//! Measures whole processes, as users start them. Each row has an expected growth, and a row that
//! grows faster is marked.

mod files;
mod loops;
mod records;

use std::process::{Command, Stdio};
use std::time::Instant;

use super::exec::timed;
use super::median;
use crate::page::Page;

/// Runs of the largest record; [`LARGEST_VARIABLE`] overrides it. Ten million take an hour more, 20 GB,
/// and another 20 GB in PostgreSQL.
const LARGEST: u64 = 1_000_000;
/// The number of runs in the largest record. Up to [`LARGEST`] it also scales the other amounts: a hundredth of
/// it are iterations, a tenth cells, and as many files.
const LARGEST_VARIABLE: &str = "RETAKE_BENCH_RUNS";

pub(crate) fn run() -> Result<(), String> {
    let largest = match std::env::var(LARGEST_VARIABLE) {
        Ok(text) => {
            text.parse().map_err(|_| format!("{LARGEST_VARIABLE}={text} is not a number"))?
        }
        Err(_) => LARGEST,
    };
    let mut page = Page::new(
        "growth: the cost of larger amounts",
        "`cargo xtask bench growth` writes this page. Each column has ten times as much as the one before. `ten times \
         as much` is the last column over the one before it, and `expected` what that should be: 1 where the amount \
         must not matter, 10 where all of it is read or made. A figure that is larger by more than 60 % is marked. \
         Whole processes of the program; times are medians where a step is quick enough to be repeated. The last columns \
         are 1,000,000 runs, 10,000 iterations, 100,000 cells and 1,000,000 files, unless `RETAKE_BENCH_RUNS` says how \
         many runs there are: 100000 makes everything a tenth, 10000000 makes the record alone larger.",
    );
    records::run(&mut page, largest)?;
    let rest = largest.min(LARGEST);
    loops::agents(&mut page, (rest / 100).max(1_000))?;
    loops::matrices(&mut page, (rest / 10).max(10_000))?;
    files::run(&mut page, rest)?;
    page.write("growth.md")
}

pub(crate) fn spin(batch: &[&str]) -> Result<(), String> {
    match batch {
        ["fill", words @ ..] => records::spin_fill(words),
        _ => Err("spin growth fill STORE FROM TO".into()),
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The amounts to measure: steps by a factor of ten up to the largest, three to five of them.
fn steps(largest: u64, smallest: u64) -> Vec<u64> {
    let smallest = smallest.min(largest / 100).max(1);
    let mut steps: Vec<u64> = std::iter::successors(Some(smallest), |step| step.checked_mul(10))
        .take_while(|step| *step <= largest)
        .collect();
    if steps.last() != Some(&largest) {
        steps.push(largest);
    }
    steps
}

/// The expected growth for ten times as much.
#[derive(Clone, Copy)]
enum Expected {
    Same,
    Tenfold,
}

/// A figure for each amount.
struct Series {
    what: String,
    expected: Expected,
    values: Vec<f64>,
}

/// The rows of a table, filled one amount after the other.
struct Growth {
    steps: Vec<u64>,
    rows: Vec<Series>,
}

impl Growth {
    fn new(steps: &[u64]) -> Self {
        Self { steps: steps.to_vec(), rows: Vec::new() }
    }

    /// Adds the figure of a row at the next amount.
    fn add(&mut self, what: &str, expected: Expected, value: f64) {
        match self.rows.iter_mut().find(|row| row.what == what) {
            Some(row) => row.values.push(value),
            None => {
                let what = what.to_owned();
                self.rows.push(Series { what, expected, values: vec![value] });
            }
        }
    }

    fn table(&self, page: &mut Page) {
        let amounts: Vec<String> = self.steps.iter().map(|step| with_commas(*step)).collect();
        let mut head = vec![""];
        head.extend(amounts.iter().map(String::as_str));
        head.extend(["ten times as much", "expected"]);
        let rows: Vec<Vec<String>> = self.rows.iter().map(|row| self.row(row)).collect();
        page.table(&head, &rows);
    }

    fn row(&self, row: &Series) -> Vec<String> {
        let mut cells = vec![row.what.clone()];
        cells.extend(row.values.iter().map(|value| figure(*value)));
        cells.resize(1 + self.steps.len(), String::new());
        let expected = match row.expected {
            Expected::Same => 1.0,
            Expected::Tenfold => 10.0,
        };
        cells.push(match row.values[..] {
            // The last step may be smaller than a factor of ten.
            [.., before, last] if row.values.len() == self.steps.len() => {
                let [.., fewer, most] = self.steps[..] else { unreachable!("as many as values") };
                let decades = (most as f64 / fewer as f64).log10();
                let ratio = (last / before).powf(1.0 / decades);
                match ratio > expected * 1.6 {
                    true => format!("**{ratio:.1}**"),
                    false => format!("{ratio:.1}"),
                }
            }
            _ => String::new(),
        });
        cells.push(format!("{expected:.0}"));
        cells
    }
}

fn figure(value: f64) -> String {
    match value {
        value if value.is_nan() => "-".to_owned(),
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

fn with_commas(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The median duration of several tries in milliseconds; of one try, if it takes longer than a second.
fn middle(tries: usize, mut once: impl FnMut() -> Result<f64, String>) -> Result<f64, String> {
    let mut times = Vec::new();
    for _ in 0..tries {
        times.push(once()?);
        if times[0] > 1000.0 {
            break;
        }
    }
    Ok(median(&times))
}

/// The same for a whole command.
fn command_ms(words: &[String], tries: usize) -> Result<f64, String> {
    middle(tries, || Ok(timed(words)?.0 / 1000.0))
}

/// The same for a command that may exit with a code other than 0, such as a comparison.
fn answer_ms(line: &str, tries: usize) -> Result<f64, String> {
    middle(tries, || {
        let begun = Instant::now();
        let mut shell = Command::new("sh");
        shell.args(["-c", line]).stdin(Stdio::null()).stdout(Stdio::null());
        let output = shell.output().map_err(text)?;
        match output.status.code() {
            Some(0 | 1) => Ok(begun.elapsed().as_secs_f64() * 1000.0),
            _ => Err(format!("{line}: {}", String::from_utf8_lossy(&output.stderr))),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_tenfold_up_to_the_largest() {
        assert_eq!(steps(1_000_000, 1_000), [1_000, 10_000, 100_000, 1_000_000]);
        assert_eq!(steps(10_000, 1_000), [100, 1_000, 10_000]);
        assert_eq!(steps(2_000, 1_000), [20, 200, 2_000]);
        assert_eq!(steps(2_500, 10), [10, 100, 1_000, 2_500]);
        assert_eq!(with_commas(1_234_567), "1,234,567");
    }

    #[test]
    fn a_row_that_grows_faster_than_expected_is_marked() {
        let mut growth = Growth::new(&[10, 100]);
        for value in [2.0, 4.0] {
            growth.add("flat", Expected::Same, value);
            growth.add("all", Expected::Tenfold, value);
        }
        assert_eq!(growth.row(&growth.rows[0]), ["flat", "2.00", "4.00", "**2.0**", "1"]);
        assert_eq!(growth.row(&growth.rows[1]), ["all", "2.00", "4.00", "2.0", "10"]);
    }
}
