//! Embedded stores of the Rust registry: `stores ENGINE put` writes four keys and acknowledges each,
//! `stores ENGINE check` looks for the acknowledged ones. Exits with 1 if one is missing, with 2
//! if the store does not open.

use std::error::Error;
use std::path::{Path, PathBuf};

type Outcome<T> = Result<T, Box<dyn Error>>;

const KEYS: usize = 4;

fn value(number: usize) -> Vec<u8> {
    number.to_string().repeat(400).into_bytes()
}

trait Store {
    fn put(&mut self, number: usize) -> Outcome<()>;
    fn get(&self, number: usize) -> Outcome<Option<Vec<u8>>>;
}

const TABLE: redb::TableDefinition<'_, u64, &[u8]> = redb::TableDefinition::new("t");

impl Store for redb::Database {
    fn put(&mut self, number: usize) -> Outcome<()> {
        let transaction = self.begin_write()?;
        transaction.open_table(TABLE)?.insert(number as u64, &*value(number))?;
        Ok(transaction.commit()?)
    }

    fn get(&self, number: usize) -> Outcome<Option<Vec<u8>>> {
        let table = match self.begin_read()?.open_table(TABLE) {
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            table => table?,
        };
        Ok(table.get(number as u64)?.map(|found| found.value().to_vec()))
    }
}

impl Store for sled::Db {
    fn put(&mut self, number: usize) -> Outcome<()> {
        self.insert(number.to_be_bytes(), value(number))?;
        self.flush()?;
        Ok(())
    }

    fn get(&self, number: usize) -> Outcome<Option<Vec<u8>>> {
        Ok(sled::Tree::get(self, number.to_be_bytes())?.map(|found| found.to_vec()))
    }
}

struct Fjall(fjall::Keyspace, fjall::PartitionHandle);

impl Store for Fjall {
    fn put(&mut self, number: usize) -> Outcome<()> {
        self.1.insert(number.to_be_bytes(), value(number))?;
        Ok(self.0.persist(fjall::PersistMode::SyncAll)?)
    }

    fn get(&self, number: usize) -> Outcome<Option<Vec<u8>>> {
        Ok(self.1.get(number.to_be_bytes())?.map(|found| found.to_vec()))
    }
}

fn open(engine: &str, path: &Path) -> Outcome<Box<dyn Store>> {
    Ok(match engine {
        "redb" => Box::new(redb::Database::create(path)?),
        "sled" => Box::new(sled::open(path)?),
        _ => {
            let keyspace = fjall::Config::new(path).open()?;
            let partition = keyspace.open_partition("t", Default::default())?;
            Box::new(Fjall(keyspace, partition))
        }
    })
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let path = PathBuf::from(std::env::var_os("FIRST_WORK_DIR").expect("FIRST_WORK_DIR")).join("db");
    if words[2] == "put" {
        let mut store = open(&words[1], &path).expect("an empty store");
        for number in 0..KEYS {
            store.put(number).expect("a key");
            println!("saved {number}");
        }
        // Like a killed process: closing would write more.
        std::process::exit(0);
    }
    let acks = std::env::var_os("FIRST_ACKS").expect("FIRST_ACKS");
    let promised = std::fs::read_to_string(acks).expect("acknowledgements").lines().count();
    std::panic::set_hook(Box::new(|_| {}));
    let opened = std::panic::catch_unwind(|| -> Outcome<bool> {
        let store = open(&words[1], &path)?;
        for number in 0..promised {
            if store.get(number)? != Some(value(number)) {
                return Ok(false);
            }
        }
        Ok(true)
    });
    let code = match opened {
        Ok(Ok(true)) => 0,
        Ok(Ok(false)) => {
            println!("lost: an acknowledged key");
            1
        }
        Ok(Err(_)) => {
            println!("corrupt: the store does not open");
            2
        }
        Err(_) => {
            println!("corrupt: the store panics");
            2
        }
    };
    std::process::exit(code);
}
