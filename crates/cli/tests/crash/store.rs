//! retake's own record under every crash state of both power-loss models: no acknowledged run and
//! no output is lost, the chain is intact, and the record can be used again.

use crate::common::{RETAKE, Sandbox, called};

/// Everything that `retake exec --json` prints is in the record by then.
const PROMISED: &str = r#"
retake="retake --store $FIRST_WORK_DIR/store"
# Nothing promised: it only has to work again.
[ -s "$FIRST_ACKS" ] || exec $retake exec --quiet -- true
$retake audit verify || exit 1
$retake runs list --json > "$FIRST_ACKS.list" || exit 1
while read -r ack; do
  id=${ack#*\"id\":\"}
  id=${id%%\"*}
  grep -q "\"id\":\"$id\".*\"outcome\":\"exited\"" "$FIRST_ACKS.list" || { echo "run $id is lost"; exit 1; }
done < "$FIRST_ACKS"
case "$(tail -n 1 "$FIRST_ACKS")" in *'"seq '*)
  $retake runs logs "$id" | tail -n 1 | grep -qx 30000 || { echo "the output of $id is lost"; exit 1; }
esac
"#;

/// Explores what a script does to a store, all of it.
fn explore(model: &str, before: &str, program: &str) {
    let sandbox = Sandbox::new();
    let root = sandbox.project().join("root");
    std::fs::create_dir(&root).unwrap();
    let check = format!("sh {}", sandbox.file("check.sh", PROMISED).display());
    let prepared = sandbox.sh(before);
    assert_eq!(prepared.code, 0, "{}", prepared.snapshot());
    let mut command = sandbox.command(RETAKE);
    command.args(["crash", "--root", "root", "--json", "--model", model, "--verify", &check]);
    let explored = called(command.args(["--", "sh", "-c", program]));
    assert_eq!(explored.code, 0, "{}", explored.snapshot());
    let answer = explored.json();
    assert_eq!(answer["complete"], true, "{answer}");
    // Enough happened for a meaningful test.
    assert!(answer["distinct"].as_u64().unwrap() > 100, "{answer}");
}

const SMALL: &str = "retake --store root/store exec --json -- echo one";
/// Larger than what is kept in the database.
const LARGE: &str = "retake --store root/store exec --json -- seq 30000 | cut -c 1-100";

#[test]
fn the_first_run_of_a_new_record_survives_on_ext4() {
    explore("ext4", "true", SMALL);
}

#[test]
fn the_first_run_of_a_new_record_survives_on_posix() {
    explore("posix", "true", SMALL);
}

#[test]
fn a_further_run_and_its_large_output_survive_on_ext4() {
    explore("ext4", SMALL, LARGE);
}

#[test]
fn a_further_run_and_its_large_output_survive_on_posix() {
    explore("posix", SMALL, LARGE);
}
