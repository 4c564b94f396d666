//! An index and archives over TLS, with a certificate that only the user trusts.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::browsers::mirror_files;
use crate::common::{RETAKE, called};
use crate::env::Env;

const VERSION: &str = "120.0.6099.109";

const SERVER: &str = "
import functools, http.server, ssl, sys
directory, = sys.argv[1:]
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=directory + '/files')
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(directory + '/server.pem', directory + '/server.key')
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
";

/// A private authority, and its certificate for localhost.
const CERTIFICATES: &str = "
openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -subj '/CN=ours' -days 2 \
  -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign
openssl req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj '/CN=localhost'
printf 'subjectAltName=DNS:localhost\\nbasicConstraints=CA:FALSE\\n' > extensions
openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out server.pem -days 2 \
  -extfile extensions
";

/// Ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn serve(directory: &Path) -> (Server, String) {
    std::fs::create_dir_all(directory).unwrap();
    let mut openssl = Command::new("sh");
    openssl.args(["-e", "-c", CERTIFICATES]).current_dir(directory);
    let made = called(&mut openssl);
    assert_eq!(made.code, 0, "{}", made.snapshot());
    let mut python = Command::new("python3");
    python.args(["-c", SERVER]).arg(directory).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = Server(python.spawn().unwrap());
    let mut port = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let url = format!("https://localhost:{}", port.trim());
    for (path, bytes) in mirror_files(&url, &[VERSION]) {
        let path = directory.join("files").join(path.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    (server, url)
}

#[test]
fn a_certificate_is_trusted_when_a_variable_names_its_authority() {
    let env = Env::bare();
    let directory = env.outside("tls");
    let (_server, url) = serve(&directory);
    env.config(&format!(
        "command: $CHROME_BIN\niterations: 1\nchrome: {{versions: [m120], cache_dir: cache, index_url: '{url}', download_url: '{url}/dl'}}\n"
    ));
    let refused = env.expect(1, &["run"]);
    assert!(refused.stderr.contains("certificate"), "{}", refused.stderr);
    assert!(refused.stderr.contains("SSL_CERT_FILE"), "{}", refused.stderr);
    let mut command = env.sandbox.command(RETAKE);
    command.args(["matrix", "run"]).env("SSL_CERT_FILE", directory.join("ca.pem"));
    let ran = called(&mut command);
    assert_eq!(ran.code, 0, "{}", ran.snapshot());
    assert!(ran.stderr.contains("1 run: 1 ok"), "{}", ran.stderr);
}
