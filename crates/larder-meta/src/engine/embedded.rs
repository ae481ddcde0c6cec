//! The embedded engine: a tree in one file, under a log.
//!
//! A commit is a record of the log and one sync of it, or none if it is late; until a checkpoint
//! moves it into the tree (redb), it is in memory, in layers above the tree. So a commit costs one
//! sync of the disk, and the tree is written in large batches.
//!
//! Invariants:
//! - Tree and log together are every commit that was answered: the tree says up to which record of
//!   the log it goes ([`APPLIED`]), in the same transaction.
//! - Late commits are in the log before they are answered, so the machine's memory has them
//!   whatever becomes of this process.
//! - After the first failure nothing is committed any more, because the content of the disk after a
//!   failed sync is unknown.
//! - Readers do not wait for a commit, whatever the disk is doing.
//!
//! Absent on purpose: more than one commit at a time, and a checkpoint beside commits.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_io::{BootId, Disk, DiskFile, OpenMode};
use redb::{Database, ReadOnlyTable, ReadableDatabase, StorageBackend, TableDefinition};

use super::layers::{Above, Stack};
use super::log::Log;
use super::{Engine, EngineError, Owner, View, Visitor, Writes};

const TREE_FILE: &str = "tree.redb";
const TABLE: TableDefinition<'static, &'static [u8], &'static [u8]> =
    TableDefinition::new("larder-meta");
/// The engine's own records; no other key begins with a zero.
const FORMAT_KEY: &[u8] = b"\0format";
const APPLIED: &[u8] = b"\0applied";
const SEED: &[u8] = b"\0seed";
/// The format of the store: the log's and the tree's.
const FORMAT: &[u8] = b"larder metadata store 1";

/// Sizes of an [`Embedded`] engine, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Length of the log: more of it, fewer checkpoints.
    pub log_bytes: u64,
    /// Writes in memory at which a checkpoint is made.
    pub layers_bytes: usize,
    /// Cache of the tree's pages.
    pub cache_bytes: usize,
}

impl Default for Sizes {
    /// A checkpoint of 1 MiB makes calls wait for 40 to 70 ms, one of 8 MiB for 170 to 400 ms;
    /// eight times as many of them take 8 % more processor time for each create (ADR 0023).
    fn default() -> Sizes {
        Sizes { log_bytes: 32 << 20, layers_bytes: 1 << 20, cache_bytes: 64 << 20 }
    }
}

/// A store in a directory of a local disk. One process at a time has it.
pub struct Embedded {
    database: Database,
    sizes: Sizes,
    /// The machine's boot.
    boot: Option<Vec<u8>>,
    /// Held by the caller that commits, while the disk works. Taken before `durable`.
    writing: Mutex<Writing>,
    durable: Mutex<Durable>,
}

struct Writing {
    log: Log,
    has_failed: bool,
}

/// The content of the tree and of the log.
struct Durable {
    /// The writes that the tree does not have.
    layers: Stack,
    tree: Arc<Tree>,
}

type Tree = ReadOnlyTable<&'static [u8], &'static [u8]>;

impl Embedded {
    /// Opens the store in `disk`, or makes one if the directory is empty.
    ///
    /// # Errors
    /// [`EngineError::Busy`] if another process has it; [`EngineError::Failed`] with a line that
    /// says what the store is, or what failed.
    pub fn open(disk: &Arc<dyn Disk>, sizes: Sizes) -> Result<Embedded, EngineError> {
        let file = disk.open(TREE_FILE, OpenMode::Create).map_err(failed)?;
        if !file.try_lock_exclusive().map_err(failed)? {
            return Err(EngineError::Busy);
        }
        let (database, tree) = guarded(|| open_tree(Backend(file), sizes))?;
        let number = |key| -> Result<u64, EngineError> {
            let value = get(&tree, key)?.ok_or_else(|| failed("the tree lacks its numbers"))?;
            let value = value.try_into().map_err(|_| failed("a number has another length"))?;
            Ok(u64::from_le_bytes(value))
        };
        let (seed, applied) = (number(SEED)?, number(APPLIED)?);
        let (log, records) = Log::open(&**disk, sizes.log_bytes, seed, applied).map_err(failed)?;
        let tree = Arc::new(tree);
        let mut layers = Stack::default();
        records.into_iter().for_each(|record| layers.push(record));
        let durable = Durable { layers, tree };
        let writing = Mutex::new(Writing { log, has_failed: false });
        let boot = BootId::current().map(|boot| boot.0.to_be_bytes().to_vec());
        Ok(Embedded { database, sizes, boot, writing, durable: Mutex::new(durable) })
    }

    /// The same store, as if the machine were in this boot.
    #[must_use]
    pub fn in_boot(self, boot: u128) -> Embedded {
        Embedded { boot: Some(boot.to_be_bytes().to_vec()), ..self }
    }

    fn writing(&self) -> MutexGuard<'_, Writing> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn durable(&self) -> MutexGuard<'_, Durable> {
        self.durable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn append(&self, log: &mut Log, writes: &Writes, is_late: bool) -> Result<(), EngineError> {
        if self.durable().layers.bytes() > self.sizes.layers_bytes {
            self.checkpoint(log)?;
        }
        if !log.append(writes, is_late).map_err(failed)? {
            self.checkpoint(log)?;
            log.grow(writes);
            if !log.append(writes, is_late).map_err(failed)? {
                return Err(failed("a record does not fit into an empty log"));
            }
        }
        self.durable().layers.push(writes.clone());
        Ok(())
    }

    fn commit_as(&self, writes: &Writes, owner: &Owner, is_late: bool) -> Result<(), EngineError> {
        let mut writing = self.writing();
        if writing.has_failed {
            return Err(failed("it failed before"));
        }
        let view = self.durable().view();
        if view.get(&owner.key)? != owner.value {
            return Err(EngineError::NotOwner);
        }
        drop(view);
        let appended = self.append(&mut writing.log, writes, is_late);
        writing.has_failed = appended.is_err();
        appended
    }

    /// Brings the layers into the tree, and begins the log again.
    fn checkpoint(&self, log: &mut Log) -> Result<(), EngineError> {
        // Not under the lock: views do not wait for a checkpoint.
        let layers = self.durable().layers.clone();
        let mut all = layers.merged();
        all.insert(APPLIED.to_vec(), Some(log.last().to_le_bytes().to_vec()));
        let tree = Arc::new(guarded(|| write_tree(&self.database, &all))?);
        *self.durable() = Durable { layers: Stack::default(), tree };
        log.rewind();
        Ok(())
    }
}

impl std::fmt::Debug for Embedded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Embedded").field("sizes", &self.sizes).finish_non_exhaustive()
    }
}

impl Durable {
    fn view(&self) -> Above<TreeView> {
        self.layers.above(TreeView(Arc::clone(&self.tree)))
    }
}

impl Engine for Embedded {
    fn view(&self) -> Result<Box<dyn View>, EngineError> {
        Ok(Box::new(self.durable().view()))
    }

    fn commit(&self, writes: &Writes, owner: &Owner) -> Result<(), EngineError> {
        self.commit_as(writes, owner, false)
    }

    fn commit_late(&self, writes: &Writes, owner: &Owner) -> Result<(), EngineError> {
        self.commit_as(writes, owner, true)
    }

    fn sync(&self) -> Result<(), EngineError> {
        let (file, last) = {
            let writing = self.writing();
            if writing.has_failed {
                return Err(failed("it failed before"));
            }
            writing.log.to_sync()
        };
        // Not under the lock: commits go on.
        let synced = file.sync_data();
        let mut writing = self.writing();
        writing.has_failed |= synced.is_err();
        synced.map_err(failed)?;
        writing.log.is_synced(last);
        Ok(())
    }

    fn boot(&self) -> Result<Option<Vec<u8>>, EngineError> {
        Ok(self.boot.clone())
    }
}

struct TreeView(Arc<Tree>);

impl View for TreeView {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, EngineError> {
        get(&self.0, key)
    }

    fn scan(&self, from: &[u8], until: &[u8], each: &mut Visitor<'_>) -> Result<(), EngineError> {
        guarded(|| {
            for entry in self.0.range(from..until)? {
                let (key, value) = entry?;
                if each(key.value(), value.value()).is_break() {
                    break;
                }
            }
            Ok(())
        })
    }
}

fn get(tree: &Tree, key: &[u8]) -> Result<Option<Vec<u8>>, EngineError> {
    guarded(|| Ok(tree.get(key)?.map(|value| value.value().to_vec())))
}

fn open_tree(backend: Backend, sizes: Sizes) -> Result<(Database, Tree), redb::Error> {
    let database =
        Database::builder().set_cache_size(sizes.cache_bytes).create_with_backend(backend)?;
    let tree = match database.begin_read()?.open_table(TABLE) {
        Ok(tree) => tree,
        // New, or its maker died before anything was committed.
        Err(redb::TableError::TableDoesNotExist(_)) => {
            let tree = write_tree(&database, &first_records())?;
            return Ok((database, tree));
        }
        Err(error) => return Err(error.into()),
    };
    let format = tree.get(FORMAT_KEY)?.map(|format| format.value().to_vec()).unwrap_or_default();
    if format != FORMAT {
        let (found, wanted) = (String::from_utf8_lossy(&format), String::from_utf8_lossy(FORMAT));
        let text = format!("it is \"{found}\", this version reads \"{wanted}\"");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text).into());
    }
    Ok((database, tree))
}

fn first_records() -> Writes {
    let number = |number: u64| Some(number.to_le_bytes().to_vec());
    Writes::from([
        (FORMAT_KEY.to_vec(), Some(FORMAT.to_vec())),
        (APPLIED.to_vec(), number(0)),
        (SEED.to_vec(), number(larder_rpc::random_u64())),
    ])
}

fn write_tree(database: &Database, writes: &Writes) -> Result<Tree, redb::Error> {
    let mut transaction = database.begin_write()?;
    // An unclean stop is the usual one: the next open must not have to scan the whole tree.
    transaction.set_quick_repair(true);
    {
        let mut table = transaction.open_table(TABLE)?;
        for (key, value) in writes {
            match value {
                Some(value) => drop(table.insert(&**key, &**value)?),
                None => drop(table.remove(&**key)?),
            }
        }
    }
    transaction.commit()?;
    Ok(database.begin_read()?.open_table(TABLE)?)
}

/// Runs redb's code; a panic in it, which damaged pages can cause, is treated like an error.
fn guarded<T>(run: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, EngineError> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(done) => done.map_err(failed),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            Err(failed(text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("panic")))
        }
    }
}

fn failed(cause: impl ToString) -> EngineError {
    EngineError::Failed(cause.to_string())
}

/// redb's view of a file of the disk.
#[derive(Debug)]
struct Backend(Arc<dyn DiskFile>);

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_at(data, offset)
    }
}
