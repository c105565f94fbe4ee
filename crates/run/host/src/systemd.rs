//! What systemd shows of a service: a line in `systemctl status`, and that it is ready.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends lines such as `READY=1` or `STATUS=…` where systemd listens for them; does nothing elsewhere.
pub fn tell_systemd(lines: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&path),
    };
    // A service does its work whether or not anybody hears how it does.
    if let (Ok(address), Ok(socket)) = (address, UnixDatagram::unbound()) {
        let _ = socket.set_nonblocking(true);
        let _ = socket.send_to_addr(lines.as_bytes(), &address);
    }
}
