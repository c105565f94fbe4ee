//! Blocks on their way: pieces that arrive one after the other, and the memory that two processes of a host share for them.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use ring::rand::{SecureRandom, SystemRandom};

use super::link::TransferLink;
use super::{KvKind, MOST_BLOCKS};

/// Bytes of some neighbouring blocks: what one layer has of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BlockPiece {
    /// The number of the first block in its prompt.
    pub(super) first: usize,
    /// Where the bytes lie in their block.
    pub(super) offset: usize,
    /// As many bytes of each block.
    pub(super) blocks: Vec<Box<[u8]>>,
}

impl BlockPiece {
    /// First block, number of blocks, place in a block, bytes of each.
    const HEAD: usize = 16;

    pub(super) fn send(
        &self,
        link: &mut TransferLink,
        shared: Option<&SharedBlocks>,
        kind: &KvKind,
    ) -> io::Result<()> {
        let each = self.blocks.first().map_or(0, |block| block.len());
        let head = [self.first, self.blocks.len(), self.offset, each].map(|number| number as u32);
        let mut message: Vec<u8> = head.iter().flat_map(|number| number.to_le_bytes()).collect();
        match shared {
            Some(shared) => {
                for (block, bytes) in (self.first..).zip(&self.blocks) {
                    shared.file.write_all_at(bytes, place(block, self.offset, kind))?;
                }
            }
            None => self.blocks.iter().for_each(|bytes| message.extend_from_slice(bytes)),
        }
        link.send_owned(message)
    }

    /// The next piece; none after the last.
    pub(super) fn receive(
        link: &mut TransferLink,
        shared: Option<&SharedBlocks>,
        kind: &KvKind,
    ) -> io::Result<Option<Self>> {
        let message = link.receive(Self::HEAD + MOST_BLOCKS * kind.block_bytes as usize)?;
        if message.is_empty() {
            return Ok(None);
        }
        let Some((head, bytes)) = message.split_at_checked(Self::HEAD) else { return Err(wrong()) };
        let number = |at: usize| u32::from_le_bytes(head.as_chunks::<4>().0[at]) as usize;
        let (first, count, offset, each) = (number(0), number(1), number(2), number(3));
        if count == 0 || count > MOST_BLOCKS || each == 0 || offset + each > kind.block_bytes as usize {
            return Err(wrong());
        }
        let blocks: Vec<Box<[u8]>> = match shared {
            None if bytes.len() != count * each => return Err(wrong()),
            None => bytes.chunks_exact(each).map(Box::from).collect(),
            Some(shared) => {
                let read = |block| {
                    let mut bytes = vec![0; each].into_boxed_slice();
                    shared.file.read_exact_at(&mut bytes, place(block, offset, kind)).map(|()| bytes)
                };
                (first..first + count).map(read).collect::<io::Result<_>>()?
            }
        };
        Ok(Some(Self { first, offset, blocks }))
    }
}

fn wrong() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a piece that is none")
}

fn place(block: usize, offset: usize, kind: &KvKind) -> u64 {
    block as u64 * kind.block_bytes + offset as u64
}

/// Neighbouring blocks, and the number of the first.
type Whole = (usize, Vec<Box<[u8]>>);

/// Puts blocks together from their pieces, and gives them in order.
pub(super) struct Arriving {
    parts: BTreeMap<usize, Vec<u8>>,
    /// Bytes of a block, and how many blocks there can be.
    size: usize,
    most: usize,
    /// Blocks that were given.
    given: usize,
}

impl Arriving {
    pub(super) fn new(kind: &KvKind, prompt: usize) -> Self {
        let most = prompt / (kind.block_tokens as usize).max(1);
        Self { parts: BTreeMap::new(), size: (kind.block_bytes as usize).max(1), most, given: 0 }
    }

    /// Takes a piece; the blocks that are complete with it, from the first one on that was not given.
    pub(super) fn add(&mut self, piece: BlockPiece) -> io::Result<Option<Whole>> {
        if piece.first < self.given || piece.first + piece.blocks.len() > self.most {
            return Err(wrong());
        }
        for (block, bytes) in (piece.first..).zip(&piece.blocks) {
            let part = self.parts.entry(block).or_default();
            // Layers come in order.
            if part.len() != piece.offset || part.len() + bytes.len() > self.size {
                return Err(wrong());
            }
            part.extend_from_slice(bytes);
        }
        let (first, mut whole) = (self.given, Vec::new());
        while let Some(part) = self.parts.first_entry()
            && *part.key() == self.given
            && part.get().len() == self.size
        {
            whole.push(part.remove().into_boxed_slice());
            self.given += 1;
        }
        Ok((!whole.is_empty()).then_some((first, whole)))
    }
}

/// A file in memory with room for the blocks of a prompt, under a name that nobody can guess. Gone with the side that made it.
pub(super) struct SharedBlocks {
    file: File,
    name: String,
    is_own: bool,
}

const FOLDER: &str = "/dev/shm";
const PREFIX: &str = "bedplate-kv-";

impl SharedBlocks {
    pub(super) fn make(bytes: u64) -> io::Result<Self> {
        let mut random = [0; 16];
        SystemRandom::new().fill(&mut random).map_err(|_| io::Error::other("no randomness"))?;
        let name = format!("{PREFIX}{:032x}", u128::from_le_bytes(random));
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(path(&name))?;
        let shared = Self { file, name, is_own: true };
        shared.file.set_len(bytes)?;
        Ok(shared)
    }

    /// What another process of the same user has made.
    pub(super) fn open(name: &str) -> io::Result<Self> {
        let is_valid = |rest: &str| rest.len() == 32 && rest.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !name.strip_prefix(PREFIX).is_some_and(is_valid) {
            return Err(wrong());
        }
        // A link of that name is not followed.
        let path = path(name);
        if !path.symlink_metadata()?.is_file() {
            return Err(wrong());
        }
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        let (found, own) = (file.metadata()?, std::fs::metadata("/proc/self")?);
        if !found.is_file() || found.uid() != own.uid() {
            return Err(wrong());
        }
        Ok(Self { file, name: name.to_owned(), is_own: false })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for SharedBlocks {
    fn drop(&mut self) {
        if self.is_own {
            let _ = std::fs::remove_file(path(&self.name));
        }
    }
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(FOLDER).join(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kind() -> KvKind {
        let text = String::new;
        KvKind { config: text(), weights: text(), activations: text(), block_tokens: 16, block_bytes: 6 }
    }

    fn piece(first: usize, offset: usize, blocks: &[&[u8]]) -> BlockPiece {
        BlockPiece { first, offset, blocks: blocks.iter().map(|block| Box::from(*block)).collect() }
    }

    #[test]
    fn blocks_are_given_in_order_when_their_last_layer_has_come() {
        let mut arriving = Arriving::new(&kind(), 60);
        assert_eq!(arriving.add(piece(0, 0, &[b"abc", b"ABC"])).unwrap(), None);
        let (first, blocks) = arriving.add(piece(0, 3, &[b"def", b"DEF"])).unwrap().unwrap();
        assert_eq!((first, blocks), (0, vec![Box::from(*b"abcdef"), Box::from(*b"ABCDEF")]));
        assert_eq!(arriving.add(piece(2, 0, &[b"xyzxyz"])).unwrap().unwrap().0, 2);
        assert!(arriving.add(piece(3, 0, &[b"xyzxyz"])).is_err(), "60 tokens have three full blocks");
    }

    #[test]
    fn a_piece_comes_as_it_was_sent_over_the_connection_and_through_shared_memory() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut giver, mut taker) =
            (TransferLink::new(listener.accept().unwrap().0).unwrap(), TransferLink::new(near).unwrap());
        assert!(giver.is_local() && taker.is_local());
        let own = SharedBlocks::make(64).unwrap();
        let others = SharedBlocks::open(own.name()).unwrap();
        let sent = piece(2, 3, &[b"def", b"DEF"]);
        for (from, to) in [(None, None), (Some(&others), Some(&own))] {
            sent.send(&mut giver, from, &kind()).unwrap();
            giver.send(b"").unwrap();
            giver.flush().unwrap();
            assert_eq!(BlockPiece::receive(&mut taker, to, &kind()).unwrap().as_ref(), Some(&sent));
            assert_eq!(BlockPiece::receive(&mut taker, to, &kind()).unwrap(), None);
        }
        for wrong in [&b"short"[..], &[0; 16], &[1, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 9, 0, 0, 0]] {
            giver.send(wrong).unwrap();
            giver.flush().unwrap();
            assert!(BlockPiece::receive(&mut taker, None, &kind()).is_err());
        }
    }

    #[test]
    fn shared_memory_is_private_and_goes_with_the_side_that_made_it() {
        let own = SharedBlocks::make(12).unwrap();
        let mode = own.file.metadata().unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        let other = SharedBlocks::open(own.name()).unwrap();
        other.file.write_all_at(b"abcdef", place(1, 0, &kind())).unwrap();
        let mut read = [0; 6];
        own.file.read_exact_at(&mut read, 6).unwrap();
        assert_eq!(&read, b"abcdef");
        let name = own.name().to_owned();
        drop(own);
        assert!(SharedBlocks::open(&name).is_err());
        for name in ["", "../etc/passwd", "bedplate-kv-", "bedplate-kv-../../../../../../etc/passwd0000"] {
            assert!(SharedBlocks::open(name).is_err(), "{name}");
        }
    }

    proptest! {
        #[test]
        fn no_piece_breaks_what_arrives(
            pieces in proptest::collection::vec((0usize..6, 0usize..8, proptest::collection::vec(0usize..8, 0..4)), 0..20),
        ) {
            let mut arriving = Arriving::new(&kind(), 80);
            let mut given = 0;
            for (first, offset, lens) in pieces {
                let blocks = lens.iter().map(|len| vec![7; *len].into_boxed_slice()).collect();
                if let Ok(Some((at, blocks))) = arriving.add(BlockPiece { first, offset, blocks }) {
                    prop_assert_eq!(at, given);
                    prop_assert!(blocks.iter().all(|block| block.len() == 6));
                    given += blocks.len();
                }
            }
            prop_assert!(given <= 5);
        }
    }
}
