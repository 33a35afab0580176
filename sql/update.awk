# Makes the script that updates an extension: awk -f sql/update.awk NEW.sql UPDATE.sql.in
#
# What an update creates is what the new version's script creates, so it is copied from there:
#   @from LINE     copies from the line of NEW.sql that begins so, which has to be the only one,
#   @upto LINE     up to the next one that begins so, without that one.
FNR == NR { lines[++count] = $0; next }
/^@from / {
    start = substr($0, 7)
    first = 0
    for (i = 1; i <= count; ++i)
        if (index(lines[i], start) == 1) {
            if (first) stop("two lines begin with: " start)
            first = i
        }
    if (!first) stop("no line begins with: " start)
    next
}
/^@upto / {
    end = substr($0, 7)
    for (i = first; i <= count && index(lines[i], end) != 1; ++i) print lines[i]
    if (i > count) stop("no line behind the first begins with: " end)
    next
}
{ print }

function stop(why) {
    print FILENAME ": " why >"/dev/stderr"
    exit 1
}
