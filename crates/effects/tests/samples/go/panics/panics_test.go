package panics

import "testing"

func TestPassesFirst(t *testing.T) {}

func TestPanics(t *testing.T) { panic("boom") }

func TestNeverRuns(t *testing.T) {}
