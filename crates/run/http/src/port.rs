//! Ports: listening on one, and holding one for a server that is away.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

const BACKLOG: u32 = 4096;

/// A socket that listens. Port 0 takes one that is free.
pub fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    listen(socket(address)?, address)
}

/// The same, beside a [`HeldPort`] of the same user.
pub fn bind_beside(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = socket(address)?;
    socket.set_reuseport(true)?;
    listen(socket, address)
}

fn socket(address: SocketAddr) -> std::io::Result<TcpSocket> {
    match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }
}

fn listen(socket: TcpSocket, address: SocketAddr) -> std::io::Result<TcpListener> {
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A port that other users cannot take while this lives, whether or not its server does.
///
/// It is bound and never listens: clients of a server that is away are refused at once, from which agents tell that the machine is there
/// and only its control plane is not. A server of the same user takes the port with [`bind_beside`].
#[derive(Debug)]
pub struct HeldPort {
    address: SocketAddr,
    _socket: TcpSocket,
}

impl HeldPort {
    /// The server may listen already.
    pub fn hold(address: SocketAddr) -> std::io::Result<Self> {
        let socket = socket(address)?;
        // Not `SO_REUSEADDR`, by which anybody could bind a port on which nothing listens.
        socket.set_reuseport(true)?;
        socket.bind(address)?;
        Ok(Self { address, _socket: socket })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn a_held_port_refuses_clients_and_other_servers_until_its_own_comes_back() {
        let server = bind_beside(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = server.local_addr().unwrap();
        let held = HeldPort::hold(address).unwrap();
        drop(TcpStream::connect(address).unwrap());
        drop(server);
        assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        assert_eq!(bind(address).unwrap_err().kind(), ErrorKind::AddrInUse);
        let server = bind_beside(address).unwrap();
        TcpStream::connect(address).unwrap();
        drop((server, held));
        bind(address).unwrap();
    }
}
