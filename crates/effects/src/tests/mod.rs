//! Test results from what a run printed and from report files.
