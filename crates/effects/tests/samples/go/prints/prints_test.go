package prints

import (
	"fmt"
	"testing"
)

func TestPrintsNoLine(t *testing.T) { fmt.Print("no end") }

func TestTable(t *testing.T) {
	t.Run("same", func(t *testing.T) { fmt.Print("no end either") })
	t.Run("same", func(t *testing.T) { fmt.Print("--- PASS: TestQuoted (0.00s)") })
}

func TestFails(t *testing.T) { fmt.Print("no end"); t.Fatal("boom") }
