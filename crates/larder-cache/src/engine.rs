//! The database below the index, which is redb's.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use redb::{Database, ReadOnlyTable, ReadableDatabase, TableDefinition};

use crate::backend::Backend;
use crate::overlay::Batch;
use crate::records::seal;

const TABLE: TableDefinition<'static, &'static [u8], &'static [u8]> =
    TableDefinition::new("larder");
/// Enough for the upper levels of the tree of a million files; the leaves stay in the page cache.
const REDB_CACHE_BYTES: usize = 8 << 20;

pub(crate) type Table = ReadOnlyTable<&'static [u8], &'static [u8]>;

/// An open database and a view of its last commit.
pub(crate) struct Engine {
    pub(crate) database: Arc<Database>,
    pub(crate) view: Table,
}

impl Engine {
    /// Closes the database, when no commit is running.
    pub(crate) fn close(self) -> Result<(), String> {
        drop(self.view);
        let database = Arc::into_inner(self.database).ok_or("a commit is running")?;
        database.close().map_err(|error| error.to_string())
    }
}

/// Runs redb's code; a panic in it, which damaged pages can cause, is treated like an error.
pub(crate) fn guarded<T>(run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        Err(text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("panic").to_owned())
    })
}

/// Opens or creates the database; with `checks`, every page is verified.
pub(crate) fn open_engine(backend: Backend, checks: bool) -> Result<Engine, String> {
    let database = Database::builder()
        .set_cache_size(REDB_CACHE_BYTES)
        .set_check_integrity_on_open(checks)
        .create_with_backend(backend)
        .map_err(|error| error.to_string())?;
    // The first commit creates the table.
    let view = write_batch(&database, &Batch::new())?;
    Ok(Engine { database: Arc::new(database), view })
}

/// Commits these changes; returns the view of them.
pub(crate) fn write_batch(database: &Database, batch: &Batch) -> Result<Table, String> {
    let write = || -> Result<Table, redb::Error> {
        let mut transaction = database.begin_write()?;
        transaction.set_quick_repair(true);
        {
            let mut table = transaction.open_table(TABLE)?;
            for (key, value) in batch {
                match value {
                    Some(value) => drop(table.insert(&**key, &*seal(key, value))?),
                    None => drop(table.remove(&**key)?),
                }
            }
        }
        transaction.commit()?;
        Ok(database.begin_read()?.open_table(TABLE)?)
    };
    write().map_err(|error| error.to_string())
}
