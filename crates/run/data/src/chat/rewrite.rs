//! A template written anew, with a filter around every expression that makes something.
//!
//! minijinja limits how many instructions a template executes, and not how much one of them makes: thirty concatenations of a text
//! with itself make a gigabyte of a byte. The filters [`BOUNDED`] and [`ASSIGNED`] take what was made from the allowance of the
//! template. Lines stay where they are, so that errors name those of the original.

use minijinja::machinery::ast::{
    BinOp, BinOpKind, Call, CallArg, CompareOpKind, Const, Expr, IfCond, Macro, Spanned, Stmt, UnaryOpKind,
};
use minijinja::machinery::{WhitespaceConfig, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind};

/// The filter around what is made.
pub(super) const BOUNDED: &str = "__bounded";
/// The filter around what a namespace is given.
pub(super) const ASSIGNED: &str = "__assigned";
/// Around what is joined to a text.
pub(super) const TEXT: &str = "__text";
/// `%`, which formats texts.
pub(super) const REMAINDER: &str = "__remainder";

/// Texts that are joined before what they make is counted.
const LONGEST_CHAIN: usize = 16;

/// The template, as transformers reads it, with its filters.
pub(super) fn rewritten(source: &str) -> Result<String, Error> {
    let white_space =
        WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true };
    let template = parse(source, "chat", SyntaxConfig, white_space)?;
    let mut printer = Printer { text: String::with_capacity(2 * source.len()), line: 1 };
    printer.statement(&template)?;
    Ok(printer.text)
}

struct Printer {
    text: String,
    line: usize,
}

impl Printer {
    fn put(&mut self, text: &str) {
        self.line += text.matches('\n').count();
        self.text.push_str(text);
    }

    /// Begins a tag, and goes on to the line on which it was in the original.
    fn tag(&mut self, line: u16, words: &str) {
        self.put("{%");
        self.go_to(line);
        self.put(words);
    }

    fn go_to(&mut self, line: u16) {
        while self.line < usize::from(line) {
            self.put("\n");
        }
        self.put(" ");
    }

    fn end(&mut self, word: &str) {
        self.put("{% ");
        self.put(word);
        self.put(" %}");
    }

    fn body(&mut self, statements: &[Stmt<'_>]) -> Result<(), Error> {
        statements.iter().try_for_each(|statement| self.statement(statement))
    }

    fn statement(&mut self, statement: &Stmt<'_>) -> Result<(), Error> {
        match statement {
            Stmt::Template(it) => self.body(&it.children)?,
            // As an expression, so that the formatter counts it.
            Stmt::EmitRaw(it) => {
                self.put("{{");
                self.go_to(it.span().start_line);
                self.quoted(it.raw);
                self.put("}}");
            }
            Stmt::EmitExpr(it) => {
                self.put("{{");
                self.go_to(it.span().start_line);
                self.expression(&it.expr)?;
                self.put("}}");
            }
            Stmt::ForLoop(it) => {
                self.tag(it.span().start_line, "for ");
                self.target(&it.target)?;
                self.put(" in ");
                self.expression(&it.iter)?;
                if let Some(filter) = &it.filter_expr {
                    self.put(" if ");
                    self.expression(filter)?;
                }
                self.put(if it.recursive { " recursive %}" } else { "%}" });
                self.body(&it.body)?;
                if !it.else_body.is_empty() {
                    self.end("else");
                    self.body(&it.else_body)?;
                }
                self.end("endfor");
            }
            Stmt::IfCond(it) => {
                self.tag(it.span().start_line, "if ");
                self.branch(it)?;
                self.end("endif");
            }
            Stmt::WithBlock(it) => {
                self.tag(it.span().start_line, "with ");
                for (at, (target, value)) in it.assignments.iter().enumerate() {
                    self.put(if at > 0 { ", " } else { "" });
                    self.target(target)?;
                    self.put(" = ");
                    self.expression(value)?;
                }
                self.put("%}");
                self.body(&it.body)?;
                self.end("endwith");
            }
            Stmt::Set(it) => {
                self.tag(it.span().start_line, "set ");
                self.target(&it.target)?;
                self.put(" = ");
                self.expression(&it.expr)?;
                if matches!(it.target, Expr::GetAttr(_)) {
                    self.put("|");
                    self.put(ASSIGNED);
                }
                self.put("%}");
            }
            Stmt::SetBlock(it) => {
                self.tag(it.span().start_line, "set ");
                self.target(&it.target)?;
                if let Some(filter) = &it.filter {
                    self.put("|");
                    self.filters(filter)?;
                }
                self.put("%}");
                self.body(&it.body)?;
                self.end("endset");
            }
            Stmt::AutoEscape(it) => {
                self.tag(it.span().start_line, "autoescape ");
                self.expression(&it.enabled)?;
                self.put("%}");
                self.body(&it.body)?;
                self.end("endautoescape");
            }
            Stmt::FilterBlock(it) => {
                self.tag(it.span().start_line, "filter ");
                self.filters(&it.filter)?;
                self.put("%}");
                self.body(&it.body)?;
                self.end("endfilter");
            }
            Stmt::Block(it) => {
                self.tag(it.span().start_line, "block ");
                self.put(it.name);
                self.put("%}");
                self.body(&it.body)?;
                self.end("endblock");
            }
            Stmt::Macro(it) => {
                self.tag(it.span().start_line, "macro ");
                self.put(it.name);
                self.parameters(it)?;
                self.put("%}");
                self.body(&it.body)?;
                self.end("endmacro");
            }
            Stmt::CallBlock(it) => {
                self.tag(it.call.span().start_line, "call");
                self.parameters(&it.macro_decl)?;
                self.put(" ");
                self.call(&it.call)?;
                self.put("%}");
                self.body(&it.macro_decl.body)?;
                self.end("endcall");
            }
            Stmt::Continue(_) => self.end("continue"),
            Stmt::Break(_) => self.end("break"),
            Stmt::Do(it) => {
                self.tag(it.call.span().start_line, "do ");
                self.call(&it.call)?;
                self.put("%}");
            }
            Stmt::Import(_) | Stmt::FromImport(_) | Stmt::Extends(_) | Stmt::Include(_) => {
                return Err(refused("it asks for another template, and a chat template is alone"));
            }
        }
        Ok(())
    }

    /// A condition and what follows from it; of the conditions after it none is nested.
    fn branch(&mut self, it: &IfCond<'_>) -> Result<(), Error> {
        self.expression(&it.expr)?;
        self.put("%}");
        self.body(&it.true_body)?;
        match &it.false_body[..] {
            [] => Ok(()),
            [Stmt::IfCond(next)] => {
                self.tag(next.expr.span().start_line, "elif ");
                self.branch(next)
            }
            other => {
                self.end("else");
                self.body(other)
            }
        }
    }

    fn parameters(&mut self, it: &Macro<'_>) -> Result<(), Error> {
        self.put("(");
        let without_default = it.args.len() - it.defaults.len();
        for (at, name) in it.args.iter().enumerate() {
            self.put(if at > 0 { ", " } else { "" });
            self.target(name)?;
            if let Some(default) = at.checked_sub(without_default).map(|at| &it.defaults[at]) {
                self.put("=");
                self.expression(default)?;
            }
        }
        self.put(")");
        Ok(())
    }

    /// What is assigned to: names, attributes of namespaces, lists of either.
    fn target(&mut self, target: &Expr<'_>) -> Result<(), Error> {
        match target {
            Expr::Var(it) => self.put(it.id),
            Expr::GetAttr(it) => {
                self.target(&it.expr)?;
                self.put(".");
                self.put(it.name);
            }
            Expr::List(it) => {
                self.put("(");
                for item in &it.items {
                    self.target(item)?;
                    self.put(", ");
                }
                self.put(")");
            }
            _ => return Err(refused("it assigns to something that is no name")),
        }
        Ok(())
    }

    /// The filters of a block: a chain that has no value at its beginning.
    fn filters(&mut self, chain: &Expr<'_>) -> Result<(), Error> {
        let Expr::Filter(it) = chain else {
            return Err(refused("a block is filtered by something that is no filter"));
        };
        if let Some(before) = &it.expr {
            self.filters(before)?;
            self.put("|");
        }
        self.put(it.name);
        self.arguments(&it.args)?;
        self.put("|");
        self.put(BOUNDED);
        Ok(())
    }

    /// Names, constants and what is looked up stand alone, everything else in brackets.
    fn expression(&mut self, expression: &Expr<'_>) -> Result<(), Error> {
        match expression {
            Expr::Var(it) => self.put(it.id),
            Expr::Const(it) => self.constant(it)?,
            Expr::Slice(it) => {
                self.put("(");
                self.expression(&it.expr)?;
                self.put("[");
                self.optional(it.start.as_ref())?;
                self.put(":");
                self.optional(it.stop.as_ref())?;
                self.put(":");
                self.optional(it.step.as_ref())?;
                self.made("]");
            }
            Expr::UnaryOp(it) => {
                self.put(match it.op {
                    UnaryOpKind::Not => "(not ",
                    UnaryOpKind::Neg => "(-",
                });
                self.expression(&it.expr)?;
                self.put(")");
            }
            Expr::BinOp(it) => self.binary(it)?,
            Expr::Compare(it) => {
                self.put("(");
                self.expression(&it.expr)?;
                for next in &it.ops {
                    self.put(compared(next.op));
                    self.expression(&next.expr)?;
                }
                self.put(")");
            }
            Expr::IfExpr(it) => {
                self.put("(");
                self.expression(&it.true_expr)?;
                self.put(" if ");
                self.expression(&it.test_expr)?;
                if let Some(other) = &it.false_expr {
                    self.put(" else ");
                    self.expression(other)?;
                }
                self.put(")");
            }
            Expr::Filter(it) => {
                let Some(filtered) = &it.expr else { return Err(refused("a filter has nothing to filter")) };
                self.put("(");
                self.expression(filtered)?;
                self.put("|");
                self.put(it.name);
                self.arguments(&it.args)?;
                self.made("");
            }
            Expr::Test(it) => {
                self.put("(");
                self.expression(&it.expr)?;
                self.put(" is ");
                self.put(it.name);
                self.arguments(&it.args)?;
                self.put(")");
            }
            Expr::GetAttr(it) => {
                self.expression(&it.expr)?;
                self.put(".");
                self.put(it.name);
            }
            Expr::GetItem(it) => {
                self.expression(&it.expr)?;
                self.put("[");
                self.expression(&it.subscript_expr)?;
                self.put("]");
            }
            Expr::Call(it) => {
                self.put("(");
                self.call(it)?;
                self.made("");
            }
            Expr::List(it) => {
                self.put("([");
                for item in &it.items {
                    self.expression(item)?;
                    self.put(", ");
                }
                self.made("]");
            }
            Expr::Map(it) => {
                self.put("({");
                for (key, value) in it.keys.iter().zip(&it.values) {
                    self.expression(key)?;
                    self.put(": ");
                    self.expression(value)?;
                    self.put(", ");
                }
                self.made("}");
            }
        }
        Ok(())
    }

    /// Ends an expression that makes something.
    fn made(&mut self, close: &str) {
        self.put(close);
        self.put("|");
        self.put(BOUNDED);
        self.put(")");
    }

    fn binary(&mut self, it: &BinOp<'_>) -> Result<(), Error> {
        let (word, makes) = match it.op {
            BinOpKind::Eq => ("==", false),
            BinOpKind::Ne => ("!=", false),
            BinOpKind::Lt => ("<", false),
            BinOpKind::Lte => ("<=", false),
            BinOpKind::Gt => (">", false),
            BinOpKind::Gte => (">=", false),
            BinOpKind::ScAnd => (" and ", false),
            BinOpKind::ScOr => (" or ", false),
            BinOpKind::Sub => ("-", false),
            BinOpKind::Div => ("/", false),
            BinOpKind::FloorDiv => ("//", false),
            BinOpKind::Pow => ("**", false),
            BinOpKind::In => (" in ", false),
            BinOpKind::Mul => ("*", true),
            BinOpKind::Add => return self.chain("+", it),
            BinOpKind::Concat => return self.chain("~", it),
            BinOpKind::Rem => {
                self.put("(");
                self.expression(&it.left)?;
                self.put("|");
                self.put(REMAINDER);
                self.put("(");
                self.expression(&it.right)?;
                self.made(")");
                return Ok(());
            }
        };
        self.put(if makes { "((" } else { "(" });
        self.expression(&it.left)?;
        self.put(word);
        self.expression(&it.right)?;
        if makes {
            self.made(")");
        } else {
            self.put(")");
        }
        Ok(())
    }

    /// Texts that are joined one after the other; what some of them make is counted at once.
    fn chain(&mut self, word: &str, last: &BinOp<'_>) -> Result<(), Error> {
        let (mut first, mut others) = (&last.left, vec![&last.right]);
        while let Expr::BinOp(it) = first
            && others.len() < LONGEST_CHAIN
            && matches!(
                (it.op, last.op),
                (BinOpKind::Add, BinOpKind::Add) | (BinOpKind::Concat, BinOpKind::Concat)
            )
        {
            others.push(&it.right);
            first = &it.left;
        }
        self.put("((");
        self.joined(word, first)?;
        for other in others.into_iter().rev() {
            self.put(word);
            self.joined(word, other)?;
        }
        self.made(")");
        Ok(())
    }

    /// One of them; `~` joins anything as a text.
    fn joined(&mut self, word: &str, expression: &Expr<'_>) -> Result<(), Error> {
        self.expression(expression)?;
        if word == "~" {
            self.put("|");
            self.put(TEXT);
        }
        Ok(())
    }

    fn call(&mut self, it: &Spanned<Call<'_>>) -> Result<(), Error> {
        self.expression(&it.expr)?;
        self.put("(");
        self.listed(&it.args)?;
        self.put(")");
        Ok(())
    }

    fn arguments(&mut self, arguments: &[CallArg<'_>]) -> Result<(), Error> {
        if arguments.is_empty() {
            return Ok(());
        }
        self.put("(");
        self.listed(arguments)?;
        self.put(")");
        Ok(())
    }

    fn listed(&mut self, arguments: &[CallArg<'_>]) -> Result<(), Error> {
        for (at, argument) in arguments.iter().enumerate() {
            self.put(if at > 0 { ", " } else { "" });
            let value = match argument {
                CallArg::Pos(value) => value,
                CallArg::Kwarg(name, value) => {
                    self.put(name);
                    self.put("=");
                    value
                }
                CallArg::PosSplat(value) => {
                    self.put("*");
                    value
                }
                CallArg::KwargSplat(value) => {
                    self.put("**");
                    value
                }
            };
            self.expression(value)?;
        }
        Ok(())
    }

    fn optional(&mut self, expression: Option<&Expr<'_>>) -> Result<(), Error> {
        expression.map_or(Ok(()), |expression| self.expression(expression))
    }

    fn constant(&mut self, it: &Const) -> Result<(), Error> {
        match (it.value.kind(), it.value.as_str()) {
            (ValueKind::String, Some(text)) => self.quoted(text),
            (ValueKind::None, _) => self.put("none"),
            (ValueKind::Bool | ValueKind::Number, _) => self.put(&it.value.to_string()),
            (kind, _) => return Err(refused(&format!("it has a constant of kind {kind}"))),
        }
        Ok(())
    }

    fn quoted(&mut self, text: &str) {
        self.put("\"");
        for letter in text.chars() {
            match letter {
                '"' => self.put("\\\""),
                '\\' => self.put("\\\\"),
                '\n' => self.put("\\n"),
                '\r' => self.put("\\r"),
                letter => self.text.push(letter),
            }
        }
        self.put("\"");
    }
}

fn compared(operator: CompareOpKind) -> &'static str {
    match operator {
        CompareOpKind::Eq => "==",
        CompareOpKind::Ne => "!=",
        CompareOpKind::Lt => "<",
        CompareOpKind::Lte => "<=",
        CompareOpKind::Gt => ">",
        CompareOpKind::Gte => ">=",
        CompareOpKind::In => " in ",
        CompareOpKind::NotIn => " not in ",
    }
}

fn refused(why: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, why.to_owned())
}
