//! A crash test as a JUnit report: every finding is a failed test case. Without findings there is
//! one case that passed, or was skipped if not every state was checked.

use std::fmt::Write;
use std::time::Duration;

use retake_runner::html::escape_xml;

use crate::report::CrashReport;
use retake_types::text;

pub fn render(report: &CrashReport, took: Duration) -> String {
    let time = format!("{:.3}", took.as_secs_f64());
    let failures = report.findings.len();
    let cases = failures.max(1);
    let skipped = usize::from(failures == 0 && !report.is_complete());
    let counts = format!(
        "tests=\"{cases}\" failures=\"{failures}\" errors=\"0\" skipped=\"{skipped}\" time=\"{time}\""
    );
    let name = escape_xml(&report.command);
    let class = format!("retake.crash.{}", report.model.name());
    let mut xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"retake crash\" {counts}>\n  \
         <testsuite name=\"{name}\" {counts}>\n    <properties>\n"
    );
    let coverage = &report.coverage;
    let properties = [
        ("model", report.model.name().to_owned()),
        ("verify", report.verify.clone()),
        ("operations", coverage.operations.to_string()),
        ("points", coverage.points.to_string()),
        ("states", coverage.states().to_string()),
        ("distinct", coverage.distinct_states().to_string()),
        ("verified", report.verified.to_string()),
        ("complete", report.is_complete().to_string()),
        ("faults", report.faults.as_ref().map_or(0, |tested| tested.tried).to_string()),
    ];
    for (name, value) in properties {
        _ = writeln!(xml, "      <property name=\"{name}\" value=\"{}\"/>", escape_xml(&value));
    }
    xml.push_str("    </properties>\n");
    for finding in &report.findings {
        let sentence = escape_xml(&finding.sentence);
        _ = writeln!(
            xml,
            "    <testcase classname=\"{class}\" name=\"{}: {sentence}\" time=\"0.000\">\n      \
             <failure type=\"crash\" message=\"{sentence}\">{}\n{}\n{}</failure>\n    </testcase>",
            escape_xml(&finding.id),
            escape_xml(&format!(
                "{}; the check {}",
                text::count(
                    finding.states,
                    if finding.fault.is_some() { "fault" } else { "state" }
                ),
                finding.verdict
            )),
            escape_xml(&finding.output),
            escape_xml(&finding.repro)
        );
    }
    if report.findings.is_empty() {
        _ = write!(xml, "    <testcase classname=\"{class}\" name=\"{name}\" time=\"{time}\"");
        match report.incomplete() {
            Some(why) => {
                _ = writeln!(
                    xml,
                    ">\n      <skipped message=\"{}\"/>\n    </testcase>",
                    escape_xml(&why)
                );
            }
            None => xml.push_str("/>\n"),
        }
    }
    xml.push_str("  </testsuite>\n</testsuites>\n");
    xml
}
