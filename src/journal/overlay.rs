//! A file that is only read: what the database writes to it stays in memory.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI32, Ordering},
    },
};

use redb::StorageBackend;

/// Unit of what is written.
const BLOCK: usize = 4096;

/// The file with what was written over it.
#[derive(Debug)]
pub(super) struct Overlay {
    file: File,
    written: Mutex<Written>,
    errno: Arc<AtomicI32>,
}

/// The first error of the disk: the database reports one as damage.
#[derive(Debug, Clone, Default)]
pub(super) struct ReadError(Arc<AtomicI32>);

#[derive(Debug)]
struct Written {
    len: u64,
    /// Bytes of the file that count; zeros follow.
    of_file: u64,
    blocks: BTreeMap<u64, Box<[u8; BLOCK]>>,
}

// === impl ReadError ===

impl ReadError {
    pub fn get(&self) -> Option<io::Error> {
        let errno = self.0.load(Ordering::Relaxed);
        (errno != 0).then(|| io::Error::from_raw_os_error(errno))
    }
}

// === impl Overlay ===

impl Overlay {
    pub fn new(file: File, len: u64) -> (Self, ReadError) {
        let error = ReadError::default();
        let overlay = Self {
            file,
            written: Mutex::new(Written {
                len,
                of_file: len,
                blocks: BTreeMap::new(),
            }),
            errno: Arc::clone(&error.0),
        };
        (overlay, error)
    }

    fn lock(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_file(&self, at: u64, out: &mut [u8], of_file: u64) -> io::Result<()> {
        let left = usize::try_from(of_file.saturating_sub(at)).unwrap_or(usize::MAX);
        let (from_file, zeros) = out.split_at_mut(left.min(out.len()));
        zeros.fill(0);
        self.file.read_exact_at(from_file, at).inspect_err(|error| {
            self.errno.store(error.raw_os_error().unwrap_or(0), Ordering::Relaxed);
        })
    }
}

/// The parts of `len` bytes from `offset` in each block: the block, its first byte, and the number of bytes.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let (mut at, mut left) = (offset, len);
    std::iter::from_fn(move || {
        let start = usize::try_from(at % BLOCK as u64).unwrap_or_default();
        let (block, size) = (at / BLOCK as u64, left.min(BLOCK - start));
        at += size as u64;
        left -= size;
        (size > 0).then_some((block, start, size))
    })
}

impl StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.lock().len)
    }

    fn read(&self, offset: u64, mut out: &mut [u8]) -> io::Result<()> {
        let written = self.lock();
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > written.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (block, start, size) in parts(offset, out.len()) {
            let (part, rest) = out.split_at_mut(size);
            match written.blocks.get(&block) {
                Some(bytes) => part.copy_from_slice(&bytes[start..start + size]),
                None => self.read_file(block * BLOCK as u64 + start as u64, part, written.of_file)?,
            }
            out = rest;
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut written = self.lock();
        let (last, rest) = (len / BLOCK as u64, len % BLOCK as u64);
        written.len = len;
        written.of_file = written.of_file.min(len);
        written.blocks.retain(|block, _| *block <= last);
        if let Some(bytes) = written.blocks.get_mut(&last) {
            bytes[usize::try_from(rest).unwrap_or_default()..].fill(0);
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, mut data: &[u8]) -> io::Result<()> {
        let mut written = self.lock();
        let of_file = written.of_file;
        for (block, start, size) in parts(offset, data.len()) {
            let bytes = match written.blocks.entry(block) {
                Entry::Occupied(written) => written.into_mut(),
                Entry::Vacant(new) => {
                    let mut bytes = Box::new([0; BLOCK]);
                    self.read_file(block * BLOCK as u64, &mut bytes[..], of_file)?;
                    new.insert(bytes)
                }
            };
            let (part, rest) = data.split_at(size);
            bytes[start..start + size].copy_from_slice(part);
            data = rest;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write as _};

    use proptest::prelude::*;
    use redb::backends::InMemoryBackend;

    use super::*;

    #[derive(Debug, Clone)]
    enum Call {
        Write(u64, Vec<u8>),
        SetLen(u64),
    }

    fn calls() -> impl Strategy<Value = Vec<Call>> {
        let write = (0..20_000_u64, prop::collection::vec(any::<u8>(), 1..6000));
        let write = write.prop_map(|(at, data)| Call::Write(at, data));
        prop::collection::vec(prop_oneof![write, (0..20_000_u64).prop_map(Call::SetLen)], 0..12)
    }

    proptest! {
        #[test]
        fn overlay_reads_like_a_copy_in_memory_and_leaves_the_file_unchanged(
            content in prop::collection::vec(any::<u8>(), 0..15_000),
            calls in calls(),
        ) {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(&content).unwrap();
            let (overlay, error) = Overlay::new(file.reopen().unwrap(), content.len() as u64);
            let copy = InMemoryBackend::new();
            copy.set_len(content.len() as u64).unwrap();
            copy.write(0, &content).unwrap();
            for call in calls {
                for backend in [&overlay as &dyn StorageBackend, &copy] {
                    match &call {
                        Call::Write(at, data) => {
                            let end = at + data.len() as u64;
                            if end > backend.len().unwrap() {
                                backend.set_len(end).unwrap();
                            }
                            backend.write(*at, data).unwrap();
                        }
                        Call::SetLen(len) => backend.set_len(*len).unwrap(),
                    }
                }
                let len = copy.len().unwrap();
                prop_assert_eq!(overlay.len().unwrap(), len);
                let size = usize::try_from(len).unwrap();
                let (mut ours, mut theirs) = (vec![1; size], vec![2; size]);
                overlay.read(0, &mut ours).unwrap();
                copy.read(0, &mut theirs).unwrap();
                prop_assert_eq!(ours, theirs);
            }
            prop_assert_eq!(fs::read(file.path()).unwrap(), content);
            prop_assert!(error.get().is_none());
        }
    }

    #[test]
    fn read_beyond_the_end_and_of_an_unreadable_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let (overlay, error) = Overlay::new(File::open(dir.path()).unwrap(), 10);
        assert!(overlay.read(5, &mut [0; 6]).is_err() && error.get().is_none());
        assert!(overlay.read(u64::MAX, &mut [0; 6]).is_err() && error.get().is_none());
        overlay.read(5, &mut [0; 5]).unwrap_err();
        assert_eq!(error.get().unwrap().kind(), io::ErrorKind::IsADirectory);
    }
}
