//! Parses an agent's verification or validation report.
//!
//! Only the line `Result: …` decides: a report that mentions passing elsewhere has not passed.

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    Pass,
    Fail,
    NeedsReview,
}

impl Judgement {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::NeedsReview => "needs_review",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub status: Judgement,
    pub confidence: &'static str,
    pub summary: Option<String>,
    pub issues: Vec<String>,
    pub recommended_action: Option<String>,
}

impl Report {
    pub fn parse(text: &str) -> Self {
        Self {
            status: judgement(text),
            confidence: confidence(text),
            summary: section(text, "summary"),
            issues: issues(&section(text, "issues").unwrap_or_default()),
            recommended_action: section(text, "recommended action"),
        }
    }
}

/// Lines outside code fences, without Markdown's emphasis.
fn lines(text: &str) -> impl Iterator<Item = String> {
    let mut fenced = false;
    text.lines().filter_map(move |line| {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            return None;
        }
        (!fenced).then(|| line.replace(['*', '`'], "").trim().to_owned())
    })
}

fn value_of(line: &str, name: &str) -> Option<String> {
    let (label, value) = line.split_once(':')?;
    let label = label.trim_start_matches(['#', '-', ' ']).trim();
    label.eq_ignore_ascii_case(name).then(|| value.trim().to_ascii_lowercase())
}

/// Two contradicting results count as none.
fn judgement(text: &str) -> Judgement {
    let mut found = lines(text).filter_map(|line| {
        let value = value_of(&line, "result")?;
        match value.trim_end_matches('.') {
            "pass" | "passed" => Some(Judgement::Pass),
            "fail" | "failed" => Some(Judgement::Fail),
            _ => Some(Judgement::NeedsReview),
        }
    });
    let Some(first) = found.next() else { return Judgement::NeedsReview };
    if found.all(|other| other == first) { first } else { Judgement::NeedsReview }
}

fn confidence(text: &str) -> &'static str {
    lines(text)
        .find_map(|line| match value_of(&line, "confidence")?.as_str() {
            "high" => Some("high"),
            "low" => Some("low"),
            "medium" => Some("medium"),
            _ => None,
        })
        .unwrap_or("medium")
}

/// The text below a heading, up to the next one.
fn section(text: &str, title: &str) -> Option<String> {
    let mut rows = text.lines();
    rows.find(|row| {
        row.strip_prefix('#').is_some_and(|rest| {
            rest.trim_start_matches('#').trim().trim_end_matches(':').eq_ignore_ascii_case(title)
        })
    })?;
    let body: Vec<&str> = rows.take_while(|row| !row.starts_with('#')).collect();
    Some(body.join("\n").trim().to_owned()).filter(|body| !body.is_empty())
}

/// The items of a numbered list, with their continuation lines.
fn issues(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for row in text.lines() {
        let digits = row.bytes().take_while(u8::is_ascii_digit).count();
        match row[digits..].strip_prefix(['.', ')']).filter(|_| digits > 0) {
            Some(item) => found.push(item.trim().to_owned()),
            None => {
                if let (Some(last), false) = (found.last_mut(), row.trim().is_empty()) {
                    last.push('\n');
                    last.push_str(row.trim());
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_form_it_asks_for() {
        let report = Report::parse(
            "Result: FAIL\nConfidence: high\n\n## Summary\nTwo of three.\n\n## Issues\n\
             1. Missing test\n   in a.rs:3\n2) Wrong name\n\n## Recommended action\nGo on.\n",
        );
        assert_eq!(report.status, Judgement::Fail);
        assert_eq!(report.confidence, "high");
        assert_eq!(report.summary.as_deref(), Some("Two of three."));
        assert_eq!(report.issues, ["Missing test\nin a.rs:3", "Wrong name"]);
        assert_eq!(report.recommended_action.as_deref(), Some("Go on."));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["recommendedAction"], "Go on.");
        assert_eq!(Report::parse("**Result:** `PASS`").status, Judgement::Pass);
    }

    #[test]
    fn only_the_result_line_counts() {
        for text in [
            "",
            "Everything passed. PASS!",
            "The result: it would PASS if",
            "```\nResult: PASS\n```",
            "Result: PASS\n\nResult: FAIL",
            "Result: PASS, FAIL or NEEDS_REVIEW (one of them)",
        ] {
            assert_eq!(Report::parse(text).status, Judgement::NeedsReview, "{text}");
        }
    }
}
