package good

import (
	"fmt"
	"testing"
)

func TestPasses(t *testing.T) {
	fmt.Println("ok  \texample.com/quoted\t0.1s is only quoted")
}

func TestTable(t *testing.T) {
	for _, name := range []string{"one", "two words", "three"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
		})
	}
}

func TestSkipped(t *testing.T) { t.Skip("not today") }

func ExampleTwice() {
	fmt.Println(Twice(2))
	// Output: 4
}
