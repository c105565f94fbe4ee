//! Python's pickle, as far as plain values need it.
//!
//! Ranks wrote these files, and a pickle is a program: only the operations that build dictionaries, lists, tuples, texts, numbers,
//! truth and nothing are carried out. Whatever would name or call something is refused.

use serde_json::{Map, Number, Value};

/// A file builds no more values than this, nested no deeper.
const MOST_VALUES: usize = 20_000_000;
const DEEPEST: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PickleError {
    #[error("it ends in the middle of a value")]
    Short,
    #[error("operation {0:#04x} is not of plain data")]
    Refused(u8),
    #[error("it is no well-formed pickle")]
    Malformed,
    #[error("it has too many values, or they are nested too deeply")]
    TooLarge,
}

enum Item {
    Mark,
    Value(Value),
}

/// Reads a pickle of protocols 0 to 5 into JSON; keys of dictionaries become texts.
pub fn unpickle(bytes: &[u8]) -> Result<Value, PickleError> {
    let mut machine = Machine { rest: bytes, stack: Vec::new(), memo: Vec::new(), values: 0 };
    loop {
        if let Some(value) = machine.step()? {
            return Ok(value);
        }
    }
}

struct Machine<'a> {
    rest: &'a [u8],
    stack: Vec<Item>,
    memo: Vec<Option<Value>>,
    values: usize,
}

impl Machine<'_> {
    fn step(&mut self) -> Result<Option<Value>, PickleError> {
        let operation = self.bytes(1)?[0];
        match operation {
            0x80 => {
                self.bytes(1)?;
            }
            // A frame's length says nothing that is needed.
            0x95 => {
                self.bytes(8)?;
            }
            b'.' => return self.pop().map(Some),
            b'(' => self.stack.push(Item::Mark),
            b'N' => self.push(Value::Null)?,
            0x88 => self.push(Value::Bool(true))?,
            0x89 => self.push(Value::Bool(false))?,
            b'J' => {
                let number = i32::from_le_bytes(self.array()?);
                self.push(number.into())?;
            }
            b'K' => {
                let number = self.bytes(1)?[0];
                self.push(number.into())?;
            }
            b'M' => {
                let number = u16::from_le_bytes(self.array()?);
                self.push(number.into())?;
            }
            0x8a => self.long()?,
            b'G' => {
                let number = f64::from_be_bytes(self.array()?);
                self.push(Number::from_f64(number).map_or(Value::Null, Value::Number))?;
            }
            b'X' => {
                let length = u32::from_le_bytes(self.array()?) as usize;
                self.text(length)?;
            }
            0x8c => {
                let length = self.bytes(1)?[0] as usize;
                self.text(length)?;
            }
            0x8d => {
                let length =
                    usize::try_from(u64::from_le_bytes(self.array()?)).map_err(|_| PickleError::TooLarge)?;
                self.text(length)?;
            }
            b']' => self.push(Value::Array(Vec::new()))?,
            b'}' => self.push(Value::Object(Map::new()))?,
            b')' => self.push(Value::Array(Vec::new()))?,
            0x85..=0x87 => self.tuple(usize::from(operation - 0x84))?,
            b't' | b'l' => {
                let values = self.behind_mark()?;
                self.push(Value::Array(values))?;
            }
            b'a' => {
                let value = self.pop()?;
                self.extend(vec![value])?;
            }
            b'e' => {
                let values = self.behind_mark()?;
                self.extend(values)?;
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.insert(vec![key, value])?;
            }
            b'u' => {
                let pairs = self.behind_mark()?;
                self.insert(pairs)?;
            }
            b'q' => {
                let at = self.bytes(1)?[0] as usize;
                self.remember(at)?;
            }
            b'r' => {
                let at = u32::from_le_bytes(self.array()?) as usize;
                self.remember(at)?;
            }
            0x94 => self.remember(self.memo.len())?,
            b'h' => {
                let at = self.bytes(1)?[0] as usize;
                self.recall(at)?;
            }
            b'j' => {
                let at = u32::from_le_bytes(self.array()?) as usize;
                self.recall(at)?;
            }
            refused => return Err(PickleError::Refused(refused)),
        }
        Ok(None)
    }

    fn bytes(&mut self, count: usize) -> Result<&[u8], PickleError> {
        let (found, rest) = self.rest.split_at_checked(count).ok_or(PickleError::Short)?;
        self.rest = rest;
        Ok(found)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        self.bytes(N)?.try_into().map_err(|_| PickleError::Short)
    }

    fn long(&mut self) -> Result<(), PickleError> {
        let length = self.bytes(1)?[0] as usize;
        let bytes = self.bytes(length)?;
        // Little-endian two's complement; what does not fit is no count of anything.
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut wide = [if negative { 0xff } else { 0 }; 8];
        if length > 8 {
            return self.push(Value::Null);
        }
        wide[..length].copy_from_slice(bytes);
        self.push(i64::from_le_bytes(wide).into())
    }

    fn text(&mut self, length: usize) -> Result<(), PickleError> {
        let text = String::from_utf8_lossy(self.bytes(length)?).into_owned();
        self.push(Value::String(text))
    }

    fn push(&mut self, value: Value) -> Result<(), PickleError> {
        self.values += 1;
        if self.values > MOST_VALUES {
            return Err(PickleError::TooLarge);
        }
        self.stack.push(Item::Value(value));
        Ok(())
    }

    fn pop(&mut self) -> Result<Value, PickleError> {
        match self.stack.pop() {
            Some(Item::Value(value)) => Ok(value),
            _ => Err(PickleError::Malformed),
        }
    }

    fn behind_mark(&mut self) -> Result<Vec<Value>, PickleError> {
        let mark =
            self.stack.iter().rposition(|item| matches!(item, Item::Mark)).ok_or(PickleError::Malformed)?;
        let values = self.stack.split_off(mark + 1);
        self.stack.pop();
        values
            .into_iter()
            .map(|item| match item {
                Item::Value(value) => Ok(value),
                Item::Mark => Err(PickleError::Malformed),
            })
            .collect()
    }

    fn tuple(&mut self, count: usize) -> Result<(), PickleError> {
        let mut values = Vec::with_capacity(count);
        for _ in 0..count {
            values.push(self.pop()?);
        }
        values.reverse();
        self.push(Value::Array(values))
    }

    fn top(&mut self) -> Result<&mut Value, PickleError> {
        match self.stack.last_mut() {
            Some(Item::Value(value)) => Ok(value),
            _ => Err(PickleError::Malformed),
        }
    }

    fn extend(&mut self, values: Vec<Value>) -> Result<(), PickleError> {
        if values.iter().any(|value| depth(value) > DEEPEST) {
            return Err(PickleError::TooLarge);
        }
        self.top()?.as_array_mut().ok_or(PickleError::Malformed)?.extend(values);
        Ok(())
    }

    fn insert(&mut self, pairs: Vec<Value>) -> Result<(), PickleError> {
        if pairs.iter().any(|value| depth(value) > DEEPEST) {
            return Err(PickleError::TooLarge);
        }
        let object = self.top()?.as_object_mut().ok_or(PickleError::Malformed)?;
        let mut pairs = pairs.into_iter();
        while let Some(key) = pairs.next() {
            let key = match key {
                Value::String(text) => text,
                other => other.to_string(),
            };
            object.insert(key, pairs.next().ok_or(PickleError::Malformed)?);
        }
        Ok(())
    }

    /// Containers are remembered before they are filled; the copy that is recalled then is empty, which only texts and
    /// numbers, what writers do share, never are.
    fn remember(&mut self, at: usize) -> Result<(), PickleError> {
        if at > MOST_VALUES {
            return Err(PickleError::TooLarge);
        }
        let value = match self.top()? {
            value @ (Value::String(_) | Value::Number(_)) => Some(value.clone()),
            value if depth(value) <= 2 && !is_empty(value) => Some(value.clone()),
            _ => None,
        };
        if self.memo.len() <= at {
            self.memo.resize(at + 1, None);
        }
        self.memo[at] = value;
        Ok(())
    }

    fn recall(&mut self, at: usize) -> Result<(), PickleError> {
        let value = self.memo.get(at).cloned().ok_or(PickleError::Malformed)?;
        self.push(value.unwrap_or(Value::Null))
    }
}

fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty)
}

/// How deeply a value is nested, as far as it matters here.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(values) => 1 + values.first().map_or(0, depth),
        Value::Object(values) => 1 + values.values().next().map_or(0, depth),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_values_are_read_as_python_writes_them() {
        // pickle.dumps({'version': '2.9', 'entries': [{'pg_id': 0, 'sizes': ([1, 2],), 't': 1.5, 'n': None, 'x': True}], 'big': 1758000000000000000}, 2)
        let bytes = b"\x80\x02}q\x00(X\x07\x00\x00\x00versionq\x01X\x03\x00\x00\x002.9q\x02X\x07\x00\x00\x00entriesq\x03]q\x04}q\x05(X\x05\x00\x00\x00pg_idq\x06K\x00X\x05\x00\x00\x00sizesq\x07]q\x08(K\x01K\x02e\x85q\x09X\x01\x00\x00\x00tq\x0aG?\xf8\x00\x00\x00\x00\x00\x00X\x01\x00\x00\x00nq\x0bNX\x01\x00\x00\x00xq\x0c\x88uaX\x03\x00\x00\x00bigq\x0d\x8a\x08\x00\x00#\x8b\xaf\xabe\x18u.";
        let value = unpickle(bytes).unwrap();
        assert_eq!(value["version"], "2.9");
        assert_eq!(
            value["entries"][0],
            serde_json::json!({"pg_id": 0, "sizes": [[1, 2]], "t": 1.5, "n": null, "x": true})
        );
        assert_eq!(value["big"], 1_758_000_000_000_000_000_i64);
    }

    #[test]
    fn what_would_run_something_is_refused() {
        // os.system("…")
        let hostile = b"cos\nsystem\n(S'true'\ntR.";
        assert_eq!(unpickle(hostile), Err(PickleError::Refused(b'c')));
        for broken in
            [&b"\x80\x02"[..], b"", b"t.", b"u.", b"]a.", b"h\x05.", b"X\xff\xff\xff\x7fa", b"(.", b"\x85."]
        {
            assert!(unpickle(broken).is_err(), "{broken:?}");
        }
    }
}
