package bad

import "testing"

func TestFails(t *testing.T) {
	t.Errorf("numbers differ: %d", 1)
}

func TestTable(t *testing.T) {
	t.Run("good", func(t *testing.T) {})
	t.Run("bad", func(t *testing.T) { t.Fatal("boom") })
	t.Run("skipped", func(t *testing.T) { t.Skip("later") })
}

func TestPasses(t *testing.T) {}
