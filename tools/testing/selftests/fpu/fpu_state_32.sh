#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Run the 32-bit builds of the tests where a 64-bit kernel runs such programs.

ksft_skip=4

cd "$(dirname "$0")" || exit 1
tests=$(ls fpu_*_32 | grep -v exec)

echo "TAP version 13"
if ! ./fpu_state_exec_32 > /dev/null 2>&1; then
	echo "1..0 # SKIP the kernel runs no 32-bit programs"
	exit $ksft_skip
fi

number=0
failed=0
echo "1..$(echo $tests | wc -w)"
for test in $tests; do
	number=$((number + 1))
	output=$("./$test" 2>&1)
	result=$?
	echo "$output" | sed 's/^/# /'
	if [ $result -eq 0 ]; then
		echo "ok $number $test"
	else
		echo "not ok $number $test # exit=$result"
		failed=1
	fi
done
exit $failed
