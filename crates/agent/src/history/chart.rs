//! A small chart of what the iterations did: tests, files, cost and duration, one line each.

use retake_types::loop_record::agent::Iteration;

const STEPS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

type Value = fn(&Iteration) -> Option<f64>;
type Show = fn(f64) -> String;

/// Draws the last iterations that fit into `width` columns. Empty without iterations.
pub fn chart(iterations: &[Iteration], width: usize) -> String {
    let room = width.saturating_sub(36).clamp(8, 120);
    let shown = &iterations[iterations.len().saturating_sub(room)..];
    let Some((first, last)) = shown.first().zip(shown.last()) else { return String::new() };
    let rows: [(&str, Value, Show); 4] = [
        ("tests", tests, count),
        ("files", files, count),
        ("cost", Iteration::cost_usd, money),
        ("duration", duration, time),
    ];
    let mut text = format!("iterations {} to {}\n", first.number, last.number);
    for (name, value, show) in rows {
        let values: Vec<_> = shown.iter().map(value).collect();
        let known = || values.iter().copied().flatten();
        let Some(most) = known().reduce(f64::max) else {
            text.push_str(&format!("{name:<9}unknown\n"));
            continue;
        };
        let least = known().fold(most, f64::min);
        let bars: String = values.iter().map(|value| bar(*value, most)).collect();
        let range = match show(least) == show(most) {
            true => show(most),
            false => format!("{} to {}", show(least), show(most)),
        };
        text.push_str(&format!("{name:<9}{bars}  {range}\n"));
    }
    text
}

fn bar(value: Option<f64>, most: f64) -> char {
    match value {
        None => '·',
        Some(value) if value <= 0.0 || most <= 0.0 => STEPS[0],
        Some(value) => STEPS[((value / most * 7.0).round() as usize).min(7)],
    }
}

fn tests(iteration: &Iteration) -> Option<f64> {
    Some(iteration.result.as_ref()?.test_results.as_ref()?.passed as f64)
}

fn files(iteration: &Iteration) -> Option<f64> {
    iteration.changed_files().map(|count| count as f64)
}

fn duration(iteration: &Iteration) -> Option<f64> {
    iteration.duration_ms().map(|ms| ms as f64 / 1000.0)
}

fn count(value: f64) -> String {
    format!("{value:.0}")
}

fn money(value: f64) -> String {
    format!("${value:.2}")
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s < 60.0 => format!("{s:.1}s"),
        s if s < 3600.0 => format!("{}m{:02}s", s as u64 / 60, s as u64 % 60),
        s => format!("{}h{:02}m", s as u64 / 3600, s as u64 / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use retake_types::{Framework, TestResults};

    use super::*;
    use retake_types::loop_record::agent::{IterationResult, IterationStatus};

    #[test]
    fn the_chart_skips_iterations_without_results() {
        let mut all = Vec::new();
        for number in 1..=4u32 {
            let mut iteration = Iteration::new(number, String::new(), Timestamp::UNIX_EPOCH);
            let tests = TestResults {
                passed: u64::from(number) * 10,
                total: u64::from(number) * 10,
                ..TestResults::new(Framework::Cargo)
            };
            let result = IterationResult {
                test_results: (number != 2).then_some(tests),
                progress_detected: Some(true),
                duration_ms: u64::from(number) * 30_000,
                ..IterationResult::default()
            };
            iteration.end(IterationStatus::Completed, Timestamp::UNIX_EPOCH, Some(result));
            iteration.facts.cost_usd = Some(0.5);
            all.push(iteration);
        }
        assert_eq!(
            chart(&all, 80),
            "iterations 1 to 4\n\
             tests    ▃·▆█  10 to 40\n\
             files    ▁▁▁▁  0\n\
             cost     ████  $0.50\n\
             duration ▃▅▆█  30.0s to 2m00s\n"
        );
        assert!(chart(&all, 0).starts_with("iterations 1 to 4"));
        assert_eq!(chart(&[], 80), "");
        let many: Vec<_> = all.iter().cloned().cycle().take(500).collect();
        assert!(chart(&many, 80).lines().all(|line| line.chars().count() <= 80));
    }
}
