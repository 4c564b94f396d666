// No tests here.
