//! Object stores started on this machine: moto, which keeps everything in memory, and garage, a real server.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bedplate_testkit::wait_until;

pub(crate) const BUCKET: &str = "checkpoints";

/// A server that ends with the test.
pub(crate) struct Server {
    child: Child,
    pub(crate) endpoint: String,
    pub(crate) region: &'static str,
    pub(crate) key: String,
    pub(crate) secret: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Nothing where it is not installed.
pub(crate) fn moto() -> Option<Server> {
    let port = free_port();
    let program = ["moto_server", "../../../target/moto/bin/moto_server"].into_iter().find(|program| {
        Command::new(program).arg("--help").output().is_ok_and(|output| output.status.success())
    })?;
    let mut command = Command::new(program);
    command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
    let server = started(&mut command, port, "us-east-1", ("test".into(), "test".into()));
    request(port, &format!("PUT /{BUCKET} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n"));
    Some(server)
}

pub(crate) fn garage(program: &str, folder: &Path) -> Server {
    let (port, rpc) = (free_port(), free_port());
    let config = format!(
        "metadata_dir = {:?}\ndata_dir = {:?}\ndb_engine = \"sqlite\"\nreplication_factor = 1\n\
         rpc_bind_addr = \"127.0.0.1:{rpc}\"\nrpc_public_addr = \"127.0.0.1:{rpc}\"\nrpc_secret = \"{}\"\n\
         [s3_api]\ns3_region = \"garage\"\napi_bind_addr = \"127.0.0.1:{port}\"\n",
        folder.join("meta"),
        folder.join("data"),
        "1".repeat(64),
    );
    let path = folder.join("garage.toml");
    fs::write(&path, config).unwrap();
    let (key, secret) = (format!("GK{}", "2".repeat(24)), "3".repeat(64));
    let mut command = Command::new(program);
    command.arg("-c").arg(&path).args(["server", "--single-node", "--default-bucket"]);
    command.env("GARAGE_DEFAULT_ACCESS_KEY", &key).env("GARAGE_DEFAULT_SECRET_KEY", &secret);
    command.env("GARAGE_DEFAULT_BUCKET", BUCKET);
    let server = started(&mut command, port, "garage", (key, secret));
    wait_until("the bucket is made", || {
        let mut command = Command::new(program);
        command.arg("-c").arg(&path).args(["bucket", "info", BUCKET]);
        command.output().is_ok_and(|output| output.status.success())
    });
    server
}

fn started(
    command: &mut Command,
    port: u16,
    region: &'static str,
    (key, secret): (String, String),
) -> Server {
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let server = Server { child, endpoint: format!("http://127.0.0.1:{port}"), region, key, secret };
    wait_until("the object store answers", || {
        let ask = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
        let mut answer = [0; 5];
        TcpStream::connect(("127.0.0.1", port)).is_ok_and(|mut stream| {
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            stream.write_all(ask.as_bytes()).is_ok() && stream.read_exact(&mut answer).is_ok()
        }) && answer == *b"HTTP/"
    });
    server
}

/// A request that needs no signature.
fn request(port: u16, head: &str) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
