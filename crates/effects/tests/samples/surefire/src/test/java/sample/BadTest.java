package sample;

import static org.junit.Assert.*;
import org.junit.*;

public class BadTest {
  @Test public void fails() { assertEquals("numbers differ", 1, 2); }
  @Test public void errors() { throw new IllegalStateException("boom"); }
  @Test public void passesBeside() {}
}
